/*
 * colocate.c
 *	  tessera.shard_table(..., colocate_with) of a table whose rows have to be moved to where the chunks of the other table's group are.
 *
 * Steps, each committed by itself: (a) the table gets a group of its own, cut like the other one, all on its primary shard, by metadata alone
 * (internal_shard_apart). (b) Its ranges are moved, by ordinary migrations one after the other, to the shards that own them in the other group;
 * clients go on meanwhile. (c) One distributed transaction lets it join (internal_join_alike): with the table locked on all shards, both groups
 * locked and at rest on the config node, and owners that are the same everywhere, the table's row names the other group, its own group and
 * placements are gone, and the other group's version is raised for every owner. Where owners differ again, because the other group was moved
 * meanwhile, (b) and (c) come again, for a limited time.
 *
 * A call can end after any step, by an error or a crash: the table is a sharded one then, in a group of its own that the balancer leaves alone, and
 * the same call goes on from there. (a) and (c) run in a session that this one opens to its own node, as the effective user: migrations cannot be
 * waited for in a transaction that has written. (c) is one transaction with two-phase commit; a shard on which it is still in doubt refuses
 * migrations of the group (migration/donor.c).
 *
 * Why nobody goes by the table's old group after (c): the lock is ACCESS EXCLUSIVE, so no transaction that has read or written the table on a shard
 * is open at the commit; whoever comes later tells the shard which group it takes the table for (tessera_told_versions), and is stale with the old
 * one; a snapshot that is older than the commit sees the other group's placement of before, with a lower version than is told.
 *
 * Memory: the function's context. Locks: none while it moves or waits.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "admin/colocate.h"
#include "admin/shardable.h"
#include "catalog/change.h"
#include "catalog/cross_table_code.h"
#include "catalog/relation.h"
#include "common/acting_as.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/subtransaction.h"
#include "common/text.h"
#include "control/calls.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "ddl/subscription.h"
#include "migration/migration.h"
#include "routing/owner_differences.h"
#include "session/internal_connection.h"
#include "transaction/background.h"

#define REFRESH_MS 10000
#define RETRY_MS 200
#define BUSY_MS 60000			/* what is in the way is waited for so long, if nothing goes on meanwhile */
#define MOST_ROUNDS 20			/* the other group may be moved meanwhile so often */


typedef struct Colocation
{
	Oid			relid;
	Oid			with;
	const char *name;			/* qualified */
	const char *with_name;
	const TesseraRouting *routing;
	const TesseraTable *table;
	const TesseraGroup *own;	/* NULL: a placed table */
	const TesseraGroup *target;
	char	   *cross_table_code;
	int			rounds;			/* in which something was to be moved */
	bool		moved;			/* something went on in this round */
	uint64		left;			/* what shards have told of what is left to do: another value shows that it gets less */
	bool		joined;
} Colocation;


/* Is it for us? */

/* The table and the groups in the routing table, the newest one if it is to be refreshed. false: one of them is not there. */
static bool
look(Colocation *c, bool refresh)
{
	const TesseraTable *other;

	c->routing = refresh ? tessera_sharding_routing() : tessera_routing();
	if (c->routing == NULL)
		return false;
	c->table = tessera_routing_table(c->routing, c->relid);
	other = tessera_routing_table(c->routing, c->with);
	if (c->table == NULL || other == NULL || other->group < 0)
		return false;
	c->own = c->table->group >= 0 ? tessera_routing_group(c->routing, c->table->group) : NULL;
	c->target = tessera_routing_group(c->routing, other->group);
	return true;
}

/* Is a sharded table sharded as is asked for? No lock outlasts this, which a migration would wait for. */
static bool
is_alike(Colocation *c, const char *key, bool hashed)
{
	TesseraShardable shardable = {.routing = c->routing, .key_text = key, .hashed = hashed, .with = c->with};
	TesseraFindings findings = {0};
	Relation	rel;

	shardable.subscribed = tessera_subscribed_anywhere(c->routing);
	rel = shardable.rel = table_open(c->relid, AccessShareLock);
	tessera_shardable(&shardable, &findings);
	c->cross_table_code = tessera_cross_table_code_text(tessera_cross_table_code_of_tree(rel));
	table_close(rel, AccessShareLock);
	return shardable.apart && findings.list == NIL;
}

/* Has a placed table rows that would have to be moved? What this transaction has done itself cannot be seen from elsewhere: shard_table finds out. */
static bool
has_rows_to_move(Colocation *c)
{
	TesseraTargets *owners = tessera_routing_owners(c->routing, c->target);
	bool		has_rows;
	Relation	rel;

	if ((owners->n == 1 && owners->node_ids[0] == c->table->node_id) || TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return false;
	tessera_call_has_rows(tessera_to_node(c->table->node_id), c->name, &has_rows);
	if (!has_rows)
		return false;
	rel = table_open(c->relid, AccessShareLock);
	c->cross_table_code = tessera_cross_table_code_text(tessera_cross_table_code_of_tree(rel));
	table_close(rel, AccessShareLock);
	return true;
}


/* The steps */

static void
shard_apart(const Colocation *c, const char *key, bool hashed)
{
	tessera_call_shard_apart(tessera_to_node(c->routing->self), c->relid, key, hashed, c->with, GetUserId());
	ereport(NOTICE,
			(errmsg("table %s is sharded; its ranges are moved to where those of table %s are", c->name, c->with_name)));
	tessera_injection("colocate_apart");
}

static void
move_differences(Colocation *c, List *differences)
{
	ListCell   *cell;

	foreach(cell, differences)
	{
		const TesseraDifference *difference = lfirst(cell);
		const TesseraNode *node = tessera_routing_node(c->routing, difference->to);

		if (node == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
					 errmsg("node %d is not in the registry", difference->to)));
		(void) tessera_move_to(c->relid, difference->min, difference->max, NameStr(node->name));
		c->moved = true;
		tessera_injection("colocate_moved");
		CHECK_FOR_INTERRUPTS();
	}
}

/* ERROR 55006 while a shard has something left of the group's migrations: rows to delete, above all. Notes whether that gets less. */
static void
require_rows_deleted(Colocation *c)
{
	const TesseraNode *behind = NULL;
	uint64		left = 0;

	for (int i = 0; i < c->routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(c->routing, i);
		TesseraGroupRestsAnswer rests;

		if (!node->is_shard)
			continue;
		tessera_call_group_rests(tessera_to_node(node->node_id), &c->own->group_id, &rests);
		if (rests.rests == 0)
			continue;
		behind = node;
		left += (uint64) rests.deleted - (uint64) rests.rests;
	}
	c->moved = behind != NULL && left != c->left;
	c->left = left;
	if (behind != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("rows of table %s that have moved away from shard \"%s\" are still to be deleted there", c->name, NameStr(behind->name)),
				 errhint("tessera.range_deletions shows them there; what is in the way is in its server's log.")));
}

/* One round: moves what differs; or joins, if nothing does. */
static void
one_round(void *arg)
{
	Colocation *c = arg;
	List	   *differences;

	c->moved = false;
	if (!look(c, true) || c->own == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("one of the tables was dropped meanwhile")));
	c->joined = c->own == c->target;
	if (c->joined)
		return;
	differences = tessera_ownership_differences(c->routing, c->own, c->target);
	if (differences != NIL && c->rounds++ > MOST_ROUNDS)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_CONFLICTING),
				 errmsg("ranges of table %s keep being moved", c->with_name)));
	if (differences != NIL)
	{
		move_differences(c, differences);
		return;
	}
	require_rows_deleted(c);
	tessera_injection("colocate_placed");
	tessera_call_join_alike(tessera_to_node(c->routing->self), c->relid, c->with, GetUserId());
	c->joined = true;
}

static bool
may_be_over_soon(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_OBJECT_IN_USE || error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED ||
		error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE || error->sqlerrcode == ERRCODE_TESSERA_PLACEMENT_CHANGED ||
		error->sqlerrcode == ERRCODE_TESSERA_CONFLICTING || error->sqlerrcode == ERRCODE_TESSERA_STALE_ROUTING;
}

static char *
line(char *first, const char *next)
{
	return first != NULL ? psprintf("%s\n%s", first, next) : pstrdup(next);
}

/* Says in the error how things stand, and throws it on; busy: after a time in which it was always so. */
_Noreturn static void
stop(const Colocation *c, ErrorData *error, bool busy)
{
	if (busy)
	{
		error->message = psprintf("table %s could not be colocated with table %s in time: %s", c->name, c->with_name, error->message);
		error->sqlerrcode = ERRCODE_OBJECT_IN_USE;
	}
	error->detail = line(error->detail, psprintf("Table %s is meanwhile a sharded table of its own, and can be used. It is not balanced.", c->name));
	error->hint = line(error->hint, "Call tessera.shard_table with the same arguments again: it goes on where it was.");
	ReThrowError(error);
}

static void
run_rounds(Colocation *c)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), BUSY_MS);

	while (!c->joined)
	{
		ErrorData  *error = tessera_try(one_round, c);

		if (error != NULL && !may_be_over_soon(error))
			stop(c, error, false);
		if (c->moved)
			deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), BUSY_MS);
		if (error != NULL && (GetCurrentTimestamp() >= deadline || c->rounds > MOST_ROUNDS || tessera_injection_skips("colocate_deadline")))
			stop(c, error, true);
		if (error == NULL)
			continue;
		FreeErrorData(error);
		tessera_background_sleep(RETRY_MS);
	}
}

bool
tessera_colocate(Oid relid, const char *key, bool hashed, Oid with)
{
	Colocation	c = {.relid = relid, .with = with};

	if (tessera_routing() == NULL)
		return false;
	tessera_require_table_owner(with);
	tessera_require_table_owner(relid);
	c.name = tessera_qualified_name(relid);
	c.with_name = tessera_qualified_name(with);
	if (!look(&c, true) || c.own == c.target)
		return false;
	if (c.own != NULL ? !is_alike(&c, key, hashed) : !has_rows_to_move(&c))
		return false;
	tessera_move_require_free(relid);
	tessera_warn_cross_table_code(c.name, c.cross_table_code);
	if (c.own == NULL)
		shard_apart(&c, key, hashed);
	run_rounds(&c);
	return true;
}


/* The session aside: the table joins */

/* Names, then the table and its partitions on all shards: nobody is in the middle of something there. */
static void
lock_table(void *arg)
{
	const Colocation *c = arg;
	List	   *locks = NIL;
	ListCell   *cell;

	tessera_ddl_lock(tessera_routing(), list_make1(psprintf("relation %s", c->name)),
					 tessera_ddl_groups(tessera_routing(), NIL, list_make1_oid(get_rel_namespace(c->relid))), "tessera.shard_table", NULL,
					 NULL);
	foreach(cell, lcons_oid(c->relid, tessera_partitions(c->relid, NoLock)))
	{
		TesseraTableLock *lock = palloc(sizeof(TesseraTableLock));

		lock->relid = lfirst_oid(cell);
		lock->mode = AccessExclusiveLock;
		locks = lappend(locks, lock);
	}
	tessera_ddl_lock_tables(tessera_routing(), locks, true);
}

static void
add_field(StringInfo json, const char *name, const char *value)
{
	appendStringInfo(json, "%s\"%s\": ", json->len > 1 ? ", " : "", name);
	escape_json(json, value);
}

/* What the config node is asked for; see config/group_changes.c. */
static const char *
specification(const Colocation *c)
{
	StringInfoData json;

	initStringInfo(&json);
	appendStringInfoChar(&json, '{');
	add_field(&json, "table_id", tessera_uuid_text(&c->table->table_id));
	add_field(&json, "object", c->name);
	add_field(&json, "by", GetUserNameFromId(GetUserId(), false));
	add_field(&json, "term", psprintf(INT64_FORMAT, c->routing->promised_term));
	add_field(&json, "self", psprintf("%d", c->routing->self));
	add_field(&json, "from", tessera_uuid_text(&c->own->group_id));
	add_field(&json, "from_epoch", tessera_uuid_text(&c->own->epoch));
	add_field(&json, "group_id", tessera_uuid_text(&c->target->group_id));
	add_field(&json, "epoch", tessera_uuid_text(&c->target->epoch));
	appendStringInfoChar(&json, '}');
	return json.data;
}

static void
join_target(Colocation *c)
{
	int32		config = tessera_routing_config(c->routing)->node_id;
	char	   *rows;
	int32	   *nodes;
	int32	   *others;
	char	  **placements;
	int			n;
	int			nothers = 0;

	tessera_call_merge_group(tessera_writing(tessera_to_config()), specification(c), &rows);
	n = tessera_placements_of(rows, &nodes, &placements);
	others = palloc(sizeof(int32) * Max(n, 1));
	for (int i = 0; i < n; i++)
		if (nodes[i] != config)
			others[nothers++] = nodes[i];
	/*
	 * a node that has never heard of the group owns nothing of it: it is left to refresh, which must not show it versions before they are committed
	 */
	tessera_group_copies(rows, &c->table->table_id, nothers, others);
	for (int i = 0; i < n; i++)
		tessera_call_merge_placement(tessera_writing(tessera_to_node(nodes[i])), placements[i]);
}

/*
 * Step (c), in a session that the caller of shard_table has opened to its own node,
 * as that user, whose rights are asked for again; no code of users runs. ERROR TS002 if the owners differ, 55006 or 55P03 if something is in the way;
 * then nothing is changed.
 */
void
tessera_serve_join_alike(const TesseraJoinAlikeArgs *args)
{
	Colocation	c = {.relid = (Oid) args->relation, .with = (Oid) args->colocate_with};
	TesseraActing before;

	tessera_act_as_user(&before, (Oid) args->by);
	tessera_require_table_owner(c.with);
	tessera_require_table_owner(c.relid);
	c.name = tessera_qualified_name(c.relid);
	(void) tessera_sharding_routing();
	tessera_ddl_attempts(lock_table, &c, TESSERA_PATIENCE_DDL);
	/* what is not the newest is refused by the config node: no waiting for news with the table locked */
	if (!look(&c, false) || c.own == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table groups have changed meanwhile")));
	tessera_require_table_owner(c.relid);
	if (c.own != c.target)
		join_target(&c);
	tessera_act_end(&before);
	tessera_injection("join_applied");
}
