/*
 * membership.h
 *	  Changes of the cluster's membership on the config node, which alone makes them: nodes join, leave and change their addresses.
 */
#ifndef TESSERA_MEMBERSHIP_H
#define TESSERA_MEMBERSHIP_H

#include "postgres.h"

#include "common/spi.h"
#include "control/call.h"
#include "routing/routing.h"
#include "transport/connection.h"

typedef struct TesseraChange
{
	const char *action;			/* add_shard, add_router, update_node, remove_shard, remove_router */
	const char *name;
	const char *conninfo;		/* NULL where there is none */
	bool		force;
	bool		drained;		/* remove_drained: only if the shard is still marked, and nothing is waited for */
	const char *by;				/* for the changelog; set by tessera_membership_change if NULL */
} TesseraChange;

typedef struct TesseraRegistered
{
	int32		node_id;
	char	   *name;
	char	   *conninfo;
	bool		is_shard;
	bool		is_config;
	bool		draining;
	char	   *system_id;
	char	   *database;
	int			timeline;
	int			incarnation;
	char	   *server_start;	/* of the server that was last registered after a promotion; NULL: none was */
} TesseraRegistered;

/* ---- membership.c ---- */

/* ERROR 25006 in recovery and in read-only transactions. */
extern void tessera_refuse_read_only(const char *action);

/*
 * Takes the registry's lock to the end of the transaction: in the mode given, or EXCLUSIVE for nodes that come and go (readers go on, DDL waits).
 * ERROR 55P03 that names who holds it when tessera.ddl_lock_timeout has passed; the second one also TS003 and 57P03 (tessera_require_metadata).
 */
extern void tessera_registry_lock_against(LOCKMODE mode);
extern void tessera_registry_lock(void);

/* A node of the registry, in the context that was current at tessera_spi_begin; NULL (or ERROR 42704) if there is none. Access must be open. */
extern TesseraRegistered *tessera_registered(const char *name);
extern TesseraRegistered *tessera_registered_or_error(const char *name);

/* This node's routing image; ERROR 55000 with a HINT if it is in no cluster. */
extern const TesseraRouting *tessera_require_cluster(void);

/* Makes a change; returns its answer (palloc'd) or NULL. Privileges were checked. ERROR 55000 on another node than the config node. */
extern char *tessera_membership_change(TesseraChange *change);

/* The config node's address, in this node's rows. Access must be open. */
extern void tessera_set_config_conninfo(const char *conninfo);

/* ---- node_check.c: what a node is and whether it can take part ---- */

typedef struct TesseraNodeFacts
{
	const char *system_id;
	const char *database;
	const char *database_oid;
	bool		in_recovery;
	const char *started;		/* postmaster's start, text */
	int			version;		/* server_version_num */
	const char *encoding;
	const char *collate;
	const char *ctype;
	const char *provider;
	const char *icu_locale;
	const char *collation_version;
	const char *icu_version;
	int			timeline;		/* 0 in recovery */
	const char *role;			/* role that asked */
	bool		superuser;
	bool		internal;		/* member of tessera_internal */
	const char *extension;		/* installed version, NULL if not installed */
	const char *available;		/* version that CREATE EXTENSION would install, NULL if the files are missing */
	/* if the extension is installed and the node is in a cluster; else NULL */
	const char *cluster_id;
	const char *cluster;
	const char *node;
	int			node_id;
	bool		is_config;
	bool		is_node;		/* false: the identity is of the database that this one is a copy of */
	bool		is_known;		/* it is on the timeline on which it knows what it owns */
	int			incarnation;	/* see catalog/incarnation.h */
} TesseraNodeFacts;

/* Of this node. Access must be open. Palloc'd in the context that was current at tessera_spi_begin. */
extern TesseraNodeFacts *tessera_node_facts_here(void);

/* Of the node at the other end; in the current memory context. ERROR 08006. */
extern TesseraNodeFacts *tessera_node_facts(TesseraConnection *connection);

/* ERROR 55000 with a HINT naming the setting, if this node (access must be open) or the one at the other end lacks a setting. */
extern void tessera_node_check_here(void);
extern void tessera_node_check(TesseraConnection *connection);

/* ERROR 22023 unless the text is a conninfo that libpq can parse and that fixes nothing the extension sets itself. */
extern void tessera_conninfo_check(const char *conninfo);

/*
 * ERROR 22023 unless the name can be a node's or cluster's: 1-63 letters, digits, '_', '-', '.', beginning with a letter, a digit or '_'. what:
 * "node".
 */
extern void tessera_name_check(const char *what, const char *name);

/* ---- schema_script.c ---- */

/*
 * The schema of this database as one SQL script: pg_dump through the node's own conninfo, without this extension's schema, tablespaces and
 * subscriptions. Palloc'd. ERROR 58000 with pg_dump's message, 54000 if it is over the limit.
 */
extern char *tessera_schema_script(const char *conninfo);

/*
 * Privileges, settings and comment of this database, as SQL statements for a database of another name. Palloc'd. Between tessera_spi_begin and
 * tessera_spi_end.
 */
extern char *tessera_database_script(const char *database);

/* ---- announce.c ---- */

/*
 * A connection to look at a node, autocommit, outside the distributed transaction; closed by tessera_probe_close or at the (sub)transaction's end.
 * ERROR 08006.
 */
extern TesseraConnection *tessera_probe_open(const char *name, const char *conninfo);
extern void tessera_probe_close(TesseraConnection *connection);

/*
 * Tell one node about a change once this transaction has committed: opens a connection now (NOTICE if that fails: the node then learns by itself),
 * makes the call (tessera_call_literal) there after the commit, waiting a bounded time. Nothing is sent if the transaction aborts.
 */
extern void tessera_announce(const char *name, const char *conninfo, const char *call);

/* The same to every node of the registry but this one and `except` (0: none). Access must be open. */
extern void tessera_announce_others(int32 except, const char *call);

/* The call that tells a node to read the registry again. */
extern const char *tessera_reload_call(void);

/* ---- announce_server.c ---- */

/*
 * Once this transaction has committed: every server that one of the conninfo's addresses leads to is told that the node has the incarnation, so that
 * one with a lower one knows that it was replaced. Access must be open.
 */
extern void tessera_announce_incarnation(const char *name, const char *conninfo, int incarnation);


/* ---- create_cluster.c ---- */

/*
 * Schemas (one column: name) and tables (schema, name, oid) that belong to the cluster: neither the system's nor an extension's. SQL without
 * parameters.
 */
extern const char *const tessera_user_schemas_sql;
extern const char *const tessera_user_tables_sql;

/*
 * Steps (announce.c): what was announced goes out when the transaction has committed, and its nodes' answers are awaited for a short time; without
 * a commit the connections are closed. Never raise.
 */
extern void tessera_announcements_committed(void);
extern void tessera_announcements_forget(void);
extern void tessera_announcements_subtransaction_committed(SubTransactionId mine, SubTransactionId parent);
extern void tessera_announcements_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent);

/* ---- register_move.c ---- */

/* The setting of this server: migrations that a shard may take part in at the same time. */
extern int	tessera_max_moves_per_shard(void);

/* From _PG_init: setting. */
extern void tessera_register_move_init(void);

/* Steps (commit_move.c): before the commit of a transaction that decides moves the balancer is woken, if it is to be; then that is forgotten. */
extern void tessera_commit_move_before_commit(void);
extern void tessera_commit_move_ended(void);

/* ---- advisory_slots.c ---- */

/*
 * Gives a new shard its share of the slots of advisory locks, as far as no lock of them is held and their homes can be reached. Its own rows are the
 * caller's to send afterwards. Access must be open.
 */
extern void tessera_advisory_share(int32 node_id);

/*
 * Gives all slots of a node that leaves to another one; false if locks are held there. force: whatever the node says, and without asking it. Access
 * must be open.
 */
extern bool tessera_advisory_move_off(const TesseraRouting *routing, int32 node_id, bool force);

/* ---- the changes themselves (add_node.c, update_node.c, remove_node.c); on the config node ---- */

/* Each returns its answer as text (current memory context), or NULL if it has none. */
extern char *tessera_add_node(TesseraChange *change, bool shard);
extern char *tessera_update_node_change(TesseraChange *change);
extern char *tessera_remove_node(TesseraChange *change, bool shard);
extern char *tessera_cancel_removal(TesseraChange *change);

/*
 * ERROR unless the database that was looked at is that node of this cluster (its id as text). Its name may be another: databases can be renamed.
 */
extern void tessera_check_same_node(const TesseraRegistered *node, const TesseraNodeFacts *there, const char *cluster_id);

#endif							/* TESSERA_MEMBERSHIP_H */
