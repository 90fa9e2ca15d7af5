/*
 * ddl.h
 *	  DDL of the cluster: which utility statements reach every node, and how (doc/design.md#ddl; S104-S119).
 *
 * A statement runs here first, inside a subtransaction with a short lock_timeout, under a DDL lock on the config node; then its own text is sent to
 * every other node within the distributed transaction, which commits in two phases. If a lock is not had in time, the attempt is undone on all nodes.
 * Each node keeps its own catalog rows: it watches which tables and schemas the statement creates, alters and drops (object access hook) and writes
 * the same rows from that, with identifiers that derive from a seed sent along.
 */
#ifndef TESSERA_DDL_H
#define TESSERA_DDL_H

#include "postgres.h"
#include "utils/uuid.h"

#include "common/utility_statement.h"
#include "routing/routing.h"

/* ---- utility_hook.c ---- */

/* From _PG_init: the hooks and settings. */
extern void tessera_ddl_init(void);

/* COPY of cluster tables: in executor/, set by init.c. */
extern TesseraUtilityHandler tessera_copy_handler;

/* After a COPY that has run here or on other nodes: brings what it wrote to copies of replicated tables; set by init.c. */
extern void (*tessera_copy_done) (void);

/* The transaction takes over another one's snapshot. In executor/, set by init.c. */
extern void (*tessera_snapshot_imported) (void);

/* ANALYZE: in statistics/, set by init.c. */
extern TesseraUtilityHandler tessera_analyze_handler;

/* tessera_shard_check_table of executor/, set by init.c: false if the table is routed by another version than this shard's. image NULL: by the
 * versions told on this internal connection. */
extern bool (*tessera_table_check) (Oid relid, const TesseraRouting *image);

/* Runs it as without the extension, and counts the nesting level. */
extern void tessera_utility_run(TesseraUtility *utility);

/* ---- statement_objects.c ---- */

/* What a statement names. Object lists in the current context. */
typedef struct TesseraStatementObjects
{
	const char *cluster;		/* a name of something that every node has; NULL: none */
	const char *local;			/* a name of something temporary or of this node alone; NULL: none */
	List	   *relids;			/* cluster tables concerned (of a partition: its root); each once */
	List	   *keys;			/* char *: names to lock across the cluster */
	List	   *namespaces;		/* OIDs of the schemas of relations that are named, made or moved there; each once */
	List	   *written;		/* OIDs of the relations that it names, of any kind, as they are written: a partition, an index; each once */
	List	   *makes_in;		/* OIDs of the schemas in which it makes relations, or to which it takes them; each once */
	bool		grants_nothing; /* GRANT or REVOKE by somebody who may grant nothing of what it names: core says so, and changes nothing */
} TesseraStatementObjects;

extern void tessera_statement_objects(Node *statement, const TesseraRouting *routing, TesseraStatementObjects *named);

/* The cluster table that a relation belongs to: itself, the root of its partition tree, the table of an index; InvalidOid if none. */
extern Oid	tessera_cluster_root(const TesseraRouting *routing, Oid relid);

/* ---- statement_names.c ---- */

/* Names to lock across the cluster for a statement that names no relation that exists, roles' included: at least one. char *, palloc'd. */
extern List *tessera_statement_names(Node *statement);

/* ---- temporary.c ---- */

/*
 * True for a statement about a function, domain or composite type that depends on something temporary (the row type of a temporary table). Such an
 * object is this session's own.
 */
extern bool tessera_rests_on_temporary(Node *statement);

/* ERROR 0A000 if a temporary table would become a child of a table of the cluster, or a table of the cluster get a column of a temporary type. */
extern void tessera_refuse_temporary_child(Node *statement, const TesseraRouting *routing);
extern void tessera_refuse_temporary_columns(Node *statement);

/* ---- statement_rights.c ---- */

/*
 * ERROR 42501, as core raises it, unless the current user may run such a statement on what it names. Before the statement has any effect on others:
 * locks, ends of migrations. What it does not ask for core asks later.
 */
extern void tessera_ddl_check_rights(Node *statement, const TesseraStatementObjects *named);

/* True if the current user may grant any right to the relation, or to a column of it. */
extern bool tessera_ddl_may_grant(Oid relid);

/* ERROR 42501 for who would lock the extension's own tables without owning them, so that all of the cluster waits: rights on all tables do not do. */
extern void tessera_ddl_check_lock_of_catalog(const LockStmt *statement);

/* ---- rules.c ---- */

/* ERROR 42P16 or 0A000, with a HINT, where the statement would give a table of the cluster what it cannot have. Before the statement runs. */
extern void tessera_rules_before(Node *statement, const TesseraRouting *routing);

/* The same for what can only be seen after it has run: volatile defaults of new columns. */
extern void tessera_rules_after(Node *statement, const TesseraRouting *routing);

/*
 * ERROR TS004 (at the last attempt 55006) if the statement reads or checks whole heaps of these tables while this node has rows of them to hide: the
 * range deleter is woken.
 */
extern void tessera_rules_hidden_rows(Node *statement, const TesseraRouting *routing, List *relids);

/* ---- partitions.c ---- */

/* Attached partitions become part of a sharded table if they are sharded alike, or placed and without rows. ERROR 0A000, 42P16 with a HINT. */
extern void tessera_check_attached(const TesseraRouting *routing, const TesseraTable *root, RangeVar *partition);

/* The rest of that check, of a placed table, for whom admin/ registers: ERROR unless it can be sharded like the root. NULL: nobody has. */
extern void (*tessera_partition_check) (Oid partition, const TesseraTable *root, const TesseraRouting *routing);

/*
 * A new partition without a replica identity of its own gets all of its columns as one, if its parent was given one: core hands down a primary key,
 * but not that. Migrations find changed rows by it.
 */
extern void tessera_take_identity(Oid partition);

/* True if making the partition reads the rows of the default one. */
extern bool tessera_reads_default_partition(CreateStmt *statement);

/* True if the statement only detaches partitions to which no foreign key refers: no row is looked at. */
extern bool tessera_only_detaches(Node *statement);

/* ---- track.c ---- */

/* A partition that is attached or detached. */
typedef struct TesseraPartitionChange
{
	Oid			relid;
	Oid			root;			/* table of the cluster that it comes into, or comes out of; InvalidOid: none */
} TesseraPartitionChange;

/* What one statement did on this node, and what its catalog rows derive from. */
typedef struct TesseraTrack
{
	pg_uuid_t	seed;
	bool		router;			/* the statement came from this node's client: it decides, the others follow */
	int32		home;			/* shard of new schemas; 0: none was chosen */
	char	   *user;			/* who ran it */
	List	   *created;		/* relids, not filtered */
	List	   *altered;		/* relids of cluster tables */
	List	   *dropped;		/* relids of cluster tables */
	List	   *losing;			/* OIDs of row types that lose a column: looked at in the end, as the tables that are made of them may go as well */
	bool		lost_operators; /* an operator class was dropped, or a function of one */
	List	   *created_schemas;	/* OIDs */
	List	   *dropped_schemas;	/* char * */
	List	   *partitions;		/* TesseraPartitionChange * */
	List	   *groups;			/* pg_uuid_t *: groups of tables altered and dropped */
	MemoryContext context;
	struct TesseraTrack *outer;
} TesseraTrack;

extern TesseraTrack *tessera_track_begin(const pg_uuid_t *seed, int32 home, bool router);

/* Writes the catalog rows. Ends the tracking (tessera_track_abort does it after an error). */
extern void tessera_track_end(TesseraTrack *track, Node *statement, const TesseraRouting *routing);
extern void tessera_track_abort(TesseraTrack *track);

/* True if the relation was created by a statement that still runs: its catalog rows may not be written yet. */
extern bool tessera_track_created(Oid relid);

/* Writes the catalog rows of tables that statements which still run have created. */
extern void tessera_track_write_tables(void);

extern void tessera_track_init(void);

/*
 * While a table of the cluster is altered: true if this query is the server's own (the check of a new foreign key) and must read this node's heaps.
 */
extern bool tessera_ddl_plans_locally(const char *source);

/* ---- fan_out.c ---- */

/* Runs the statement here and on every other node, in this transaction. text: what the others run (NULL: the statement's own text). */
extern void tessera_fan_out(TesseraUtility *utility, const TesseraRouting *routing, TesseraStatementObjects *named);

/* True for ALTER TABLE ... DETACH PARTITION ... CONCURRENTLY, which the grammar allows by itself only. */
extern bool tessera_detaches_concurrently(Node *statement);

/*
 * Before a statement that is nested in a running one (in a function of an event trigger): sends the outer one to the other nodes, so that they see
 * both in order.
 */
extern void tessera_fan_out_pending(void);

/* Before a table is sharded or replicated: one that a running statement has just made (in a function of an event trigger) is known everywhere. */
extern void tessera_fan_out_settle_tables(void);

/* Steps: a statement that was sent in a subtransaction is sent again if that is rolled back. Never raise. */
extern void tessera_fan_out_subtransaction_committed(SubTransactionId mine, SubTransactionId parent);
extern void tessera_fan_out_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent);

/* Runs a statement that came from another node, as it is. */
extern void tessera_fan_out_receive(TesseraUtility *utility, const TesseraRouting *routing);

/*
 * Locks the names on the config node, has the running migrations of the groups end for the statement `by` (tessera_ddl_by), and holds off new ones to
 * the end of the transaction. Before it ends one it calls ready(arg), unless that is NULL: an error there leaves the migration alone. ERROR 55006 if
 * one does not end in time; TS004, 55P03: another attempt may succeed; 08006. groups: pg_uuid_t *.
 */
extern void tessera_ddl_lock(const TesseraRouting *routing, List *keys, List *groups, const char *by, void (*ready) (void *arg), void *arg);

/* 'TRUNCATE TABLE of "orders"': the reason in the error of migrations that the statement ends. palloc'd. */
extern char *tessera_ddl_by(const TesseraUtility *utility, const TesseraStatementObjects *named);

/* Set by init.c: ends the running migrations of groups (text of a uuid[]); see migration/migration.h. */
extern void (*tessera_ddl_end_migrations) (const char *groups, const char *by, int timeout_ms);

/* Set by init.c: true if the process of this node runs a migration; see migration/migration.h. */
extern bool (*tessera_ddl_is_of_migration) (int pid);

/*
 * Ids (pg_uuid_t *) of the groups with which these cluster tables move, and of those of the schemas (OIDs), as far as they have any; each once.
 */
extern List *tessera_ddl_groups(const TesseraRouting *routing, List *relids, List *namespaces);

/* Sets a setting until the caller's NewGUCNestLevel ends, whoever the user is. */
extern void tessera_ddl_set_here(const char *name, const char *value);

/* ---- set_constraints.c ---- */

/* SET CONSTRAINTS of a client, a function or a DO block on a member node: here, and on the nodes that take part in the transaction, now or later. */
extern void tessera_set_constraints(TesseraUtility *utility, const TesseraRouting *routing);

/* ---- truncate.c ---- */

/* TRUNCATE on a member node; received: from another node. */
extern void tessera_truncate(TesseraUtility *utility, const TesseraRouting *routing, bool received);

/* ---- database.c ---- */

/*
 * about: true if the statement is of a kind that names databases, and goes to every node if it names this node's. names: true if it names this
 * node's. In a transaction.
 */
extern bool tessera_about_database(Node *statement);
extern bool tessera_names_this_database(Node *statement);

/* A statement of another node, which names that node's database: a copy that names this one; itself if it is not about databases. */
extern PlannedStmt *tessera_for_this_database(PlannedStmt *statement);

/* After ALTER DATABASE has run here: this database's session_preload_libraries still names the library (catalog/database_setting.h). */
extern void tessera_keep_library(Node *statement);

/* After ALTER TABLE on this node: turns the trigger that captures rows of a replicated table on again, if that has turned it off. */
extern void tessera_keep_capture_trigger(Node *statement, const TesseraRouting *routing);

/* ---- node_objects.c ---- */

/* CREATE and ALTER PUBLICATION on a member node: says what is not in it, and leaves the catalog out of FOR ALL TABLES. */
extern void tessera_publication(TesseraUtility *utility);

/* From _PG_init: the hook that sees large objects being made. */
extern void tessera_node_objects_init(void);

/* ---- create_index.c ---- */

/*
 * CREATE INDEX CONCURRENTLY of a client on a table of the cluster: on every node. Ends the transaction and begins others. ERROR 25001 in a
 * transaction block; what fails is taken back on all nodes, or goes on by itself, as the HINT says.
 */
extern void tessera_create_index_concurrently(TesseraUtility *utility, const TesseraRouting *routing, TesseraStatementObjects *named);

/*
 * On each node, as part of the distributed transaction: makes the index of a CREATE INDEX CONCURRENTLY, neither built nor valid, and notes its OID in
 * the statement (InvalidOid: there is one, IF NOT EXISTS). is: true once that is done. text: what the other nodes run, with its name. palloc'd.
 */
extern void tessera_make_unbuilt_index(TesseraUtility *utility);
extern bool tessera_is_unbuilt_index(Node *statement);
extern char *tessera_unbuilt_index_text(const IndexStmt *statement);

/* Part of this transaction, as the current user: drops the index of an operation on all nodes, and ends the operation, which failed so. */
struct TesseraOperation;
extern void tessera_drop_unbuilt_index(const struct TesseraOperation *operation, const ErrorData *error);

/* ---- reindex.c ---- */

/*
 * REINDEX CONCURRENTLY of an index or a table (relid) of the cluster, which the user owns: each node runs the command. Outside a transaction block;
 * ends the transaction and begins others. In the portal's memory.
 */
extern void tessera_reindex_concurrently(Oid relid, const TesseraTable *table, const char *command);

/* ---- maintenance.c ---- */

/*
 * VACUUM, CLUSTER, REINDEX of a client on a member node: here and on the shards, if it names tables of the cluster. false: it does not, or
 * tessera.vacuum_everywhere is off: it runs as without the extension. ERROR 25001 in a transaction block, 08006 if a shard cannot be reached. Ends
 * the transaction and begins another one.
 */
extern bool tessera_maintenance(TesseraUtility *utility, const TesseraRouting *routing);

extern void tessera_maintenance_init(void); /* from _PG_init: setting */

/* ---- roles.c ---- */

extern void tessera_role_statement(TesseraUtility *utility, const TesseraRouting *routing);

/* ---- table_as.c ---- */

/* CREATE TABLE AS, SELECT INTO: an empty table on every node, then the rows. false: not a table of the cluster. */
extern bool tessera_create_table_as(TesseraUtility *utility, const TesseraRouting *routing);

/* True for CREATE MATERIALIZED VIEW over tables of the cluster. */
extern bool tessera_creates_cluster_view(struct CreateTableAsStmt *statement, const TesseraRouting *routing);

/* Parts of CREATE TABLE AS: options of the new relation as text; a utility statement run as if the user had given it; INSERT of a query's rows. */
extern void tessera_append_into_options(struct StringInfoData *text, struct IntoClause *into);
extern void tessera_run_utility_text(const char *text);
extern uint64 tessera_insert_rows(Oid relid, struct Query *source, TesseraUtility *utility);

/* ---- matview.c ---- */

/* CREATE MATERIALIZED VIEW ... WITH DATA over tables of the cluster. */
extern void tessera_create_materialized_view(struct CreateTableAsStmt *statement, const char *schema);

/* REFRESH, before and after it runs on every node. begin: false if the view is not the cluster's; ERROR 0A000 CONCURRENTLY elsewhere, 42501. */
extern bool tessera_refresh_begin(TesseraUtility *utility, const TesseraRouting *routing);
extern void tessera_refresh_end(TesseraUtility *utility);

/* Runs any utility statement by `run`, but for REFRESH of a view whose rows lie elsewhere: there is nothing to do here. */
extern void tessera_refresh_or_run(TesseraUtility *utility, void (*run) (TesseraUtility *utility));

/*
 * For the planner, once in a REFRESH: the query that gives the view's rows on its shard; NULL if none is under way, or another statement than it is
 * planned. source: text of what is planned, as core hands it on.
 */
extern struct Query *tessera_refresh_query(const char *source);

/* For the planner: true for a statement by which core's REFRESH CONCURRENTLY compares and changes the view's rows, on their shard. */
extern bool tessera_refresh_plans_locally(const char *source);

/* ---- drop_extension.c ---- */

/*
 * Before a statement on a node of a cluster. DROP EXTENSION tessera: without the extension a node would show its own shard's rows as if they were the
 * whole tables. So ERROR 2BP01; with CASCADE, the way out for a node that cannot leave the cluster, 55006 while the node takes part in a migration,
 * else the extension's tables are locked to the end of the transaction.
 */
extern void tessera_ddl_check_drop_extension(Node *statement);

/* ---- drop_database.c ---- */

/*
 * Before DROP DATABASE in any database of the server: ERROR 2BP01 if what is to be dropped is a node of a cluster, 55000 if it may be one and cannot
 * be asked. Waits for a worker that looks there, if the database may be a node. No lock is kept.
 */
extern void tessera_ddl_check_drop_database(const TesseraUtility *utility);

#endif							/* TESSERA_DDL_H */
