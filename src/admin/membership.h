/*
 * membership.h
 *	  One change of the cluster's membership, on its way to the config node and there.
 */
#ifndef TESSERA_MEMBERSHIP_H
#define TESSERA_MEMBERSHIP_H

#include "admin/admin.h"

typedef struct TesseraChange
{
	const char *action;			/* add_shard, add_router, update_node, remove_shard, remove_router */
	const char *name;
	const char *conninfo;		/* NULL where there is none */
	bool		force;
	const char *by;				/* for the changelog; set by tessera_membership_change if NULL */
	bool		forwarded;		/* came from another node */
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

/* Takes the registry's lock to the end of the transaction (EXCLUSIVE: readers go on). Access must be open. */
extern void tessera_registry_lock(void);

/* A node of the registry, in the context that was current at tessera_spi_begin; NULL (or ERROR 42704) if there is none. Access must be open. */
extern TesseraRegistered *tessera_registered(const char *name);
extern TesseraRegistered *tessera_registered_or_error(const char *name);

/* This node's routing image; ERROR 55000 with a HINT if it is in no cluster. */
extern const TesseraRouting *tessera_require_cluster(void);

/* ERROR 25001 inside a transaction block: what another node does is not undone by a rollback here. */
extern void tessera_refuse_block(void);

/* On another node than the config node: runs the change there, outside this transaction, and returns true with its answer (palloc'd, may be NULL). */
extern bool tessera_forward(const TesseraRouting *routing, const TesseraChange *change, char **answer);

/* The command by which a change is forwarded, and its five parameters. */
extern const char *const tessera_change_sql;
extern void tessera_change_values(const TesseraChange *change, const char **values);

/* Runs a change, here or on the config node; returns its answer (palloc'd) or NULL. Privileges were checked. */
extern char *tessera_membership_change(TesseraChange *change);

/* ---- join.c ---- */

/* The config node's address, in this node's rows. Access must be open. */
extern void tessera_set_config_conninfo(const char *conninfo);

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

/* ---- the changes themselves (add_node.c, update_node.c, remove_node.c) ---- */

/* Each returns its answer as text (current memory context), or NULL if it has none. */
extern char *tessera_add_node(TesseraChange *change, bool shard);
extern char *tessera_update_node_change(TesseraChange *change);
extern char *tessera_remove_node(TesseraChange *change, bool shard);

#endif							/* TESSERA_MEMBERSHIP_H */
