/*
 * admin.h
 *	  Shared inside admin/: privileges, catalog access, what is known about a node, and telling other nodes about a change.
 */
#ifndef TESSERA_ADMIN_H
#define TESSERA_ADMIN_H

#include "postgres.h"
#include "libpq-fe.h"

#include "utils/dsa.h"

#include "common/spi.h"
#include "routing/routing.h"
#include "transport/connection.h"

/* ---- privilege.c: who may, and commands on the catalog. "Access must be open": between tessera_spi_begin and tessera_spi_end. ---- */

/* ERROR 42501 unless the session's effective user is a superuser or a member of tessera_admin. */
extern void tessera_require_admin(void);

/* ERROR 42501 unless the effective user is a superuser or a member of tessera_internal, as the role of an internal connection is. */
extern void tessera_require_internal(void);

/*
 * One SQL command with text parameters, between tessera_spi_begin and tessera_spi_end. Returns the number of rows; rows of a SELECT or RETURNING are
 * in SPI_tuptable until the next command. ERROR of the command itself.
 */
extern uint64 tessera_admin_exec(const char *sql, int nparams, const char *const *values);

/* The same; returns the first column of the first row as text in the context that was current at tessera_spi_begin, NULL if none or null. */
extern char *tessera_admin_value(const char *sql, int nparams, const char *const *values);

/* Column (from 1) of row (from 0) of SPI_tuptable as text, in the current memory context; NULL if null. */
extern char *tessera_admin_field(uint64 row, int column);

/* Memory in the context that was current at tessera_spi_begin. */
extern void *tessera_admin_alloc(Size size);

/* Copy of a text (or NULL) in the context that was current at tessera_spi_begin. */
extern char *tessera_admin_keep(const char *value);

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
 * runs sql with at most one text parameter (NULL: none) there after the commit, waiting a bounded time. Nothing is sent if the transaction aborts.
 */
extern void tessera_announce(const char *name, const char *conninfo, const char *sql, const char *param);

/* The same to every node of the registry but this one and `except` (0: none). Access must be open. */
extern void tessera_announce_others(int32 except, const char *sql, const char *param);

/* What tells a node to read the registry again. */
#define TESSERA_RELOAD_SQL "SELECT tessera.reload_routing()"

/* ---- predecessors.c ---- */

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

/* From _PG_init: callbacks at the end of a (sub)transaction. */
extern void tessera_announce_init(void);

/* From _PG_init: what may not run in a schema script (join.c). */
extern void tessera_join_init(void);

#endif							/* TESSERA_ADMIN_H */
