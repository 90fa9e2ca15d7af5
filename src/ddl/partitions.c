/*
 * partitions.c
 *	  Partitions of sharded tables: which tables can be attached, and what new ones get.
 *
 * A partition has no row of the catalog: it is of its root's group, and has its root's key columns by name (doc/design.md#partitions). So what comes
 * into a sharded table must have its rows where the root's chunks say: it is of the same group already, or it has no rows.
 *
 * Nothing is kept. Locks: those of the statement.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "commands/tablecmds.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "ddl/ddl.h"

void		(*tessera_partition_check) (Oid partition, const TesseraTable *root, const TesseraRouting *routing) = NULL;


/* Attaching */

/* The call that shards a table like the root. */
static char *
shard_like(Oid partition, const TesseraTable *root, const TesseraRouting *routing)
{
	StringInfoData columns;

	initStringInfo(&columns);
	for (int i = 0; i < root->nkeys; i++)
		appendStringInfo(&columns, "%s%s", i > 0 ? ", " : "", tessera_quote(get_attname(root->relid, root->keys[i], false)));
	return psprintf("SELECT tessera.shard_table(%s, %s%s, colocate_with => %s)", quote_literal_cstr(tessera_qualified_name(partition)),
					quote_literal_cstr(columns.data), tessera_routing_group(routing, root->group)->hashed ? ", strategy => 'hash'" : "",
					quote_literal_cstr(tessera_qualified_name(root->relid)));
}

static bool
has_keys_of(const TesseraTable *table, const TesseraTable *root)
{
	if (table->nkeys != root->nkeys)
		return false;
	for (int i = 0; i < root->nkeys; i++)
		if (strcmp(get_attname(table->relid, table->keys[i], false), get_attname(root->relid, root->keys[i], false)) != 0)
			return false;
	return true;
}

/* It may become a part of the sharded table if it has no rows. It is locked on its shard to the end of the transaction. */
static void
check_placed(Oid relid, const TesseraTable *table, const TesseraTable *root, const TesseraRouting *routing)
{
	bool		rows;

	if (tessera_partition_check)
		tessera_partition_check(relid, root, routing);
	tessera_call_lock_for_sharding(tessera_writing(tessera_to_node(table->node_id)), tessera_qualified_name(relid), &rows);
	if (rows)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot attach table \"%s\" to sharded table \"%s\": it has rows, which lie on one shard", get_rel_name(relid),
						get_rel_name(root->relid)),
				 errhint("First %s.", shard_like(relid, root, routing))));
}

void
tessera_check_attached(const TesseraRouting *routing, const TesseraTable *root, RangeVar *partition)
{
	Oid			relid = RangeVarGetRelid(partition, NoLock, true);
	const TesseraTable *table = OidIsValid(relid) ? tessera_routing_table(routing, relid) : NULL;

	if (!OidIsValid(relid) || !tessera_owns_relation(relid, GetUserId()))
		return;					/* an error of the statement's own */
	if (get_rel_relkind(relid) == RELKIND_FOREIGN_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("sharded table \"%s\" cannot have foreign tables as partitions", get_rel_name(root->relid)),
				 errhint("Copy the rows into an ordinary partition.")));
	if (table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("cannot attach table \"%s\" to sharded table \"%s\": only this node has it", partition->relname, get_rel_name(root->relid)),
				 errhint("Create the table with tessera.replicate_ddl on.")));
	if (table->group >= 0 && (table->group != root->group || !has_keys_of(table, root)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("cannot attach table \"%s\" to sharded table \"%s\": it is not sharded alike", partition->relname, get_rel_name(root->relid)),
				 table->group != root->group ?
				 errhint("First %s.", shard_like(relid, root, routing)) :
				 errhint("It has another shard key. Use CREATE TABLE ... PARTITION OF, and copy the rows.")));
	if (table->group < 0)
		check_placed(relid, table, root, routing);
}


/* New partitions */

/* True if the replica identity is one that was given to the table. */
static bool
gives_identity(Oid parent)
{
	Relation	rel = table_open(parent, AccessShareLock);
	char		identity = rel->rd_rel->relreplident;

	table_close(rel, AccessShareLock);
	return identity == REPLICA_IDENTITY_FULL || identity == REPLICA_IDENTITY_INDEX;
}

void
tessera_take_identity(Oid partition)
{
	ReplicaIdentityStmt *identity = makeNode(ReplicaIdentityStmt);
	AlterTableCmd *command = makeNode(AlterTableCmd);
	Relation	rel = table_open(partition, NoLock);
	bool		has_one = rel->rd_rel->relreplident == REPLICA_IDENTITY_FULL || OidIsValid(RelationGetReplicaIndex(rel));

	table_close(rel, NoLock);
	if (has_one || !gives_identity(get_partition_parent(partition, false)))
		return;
	identity->identity_type = REPLICA_IDENTITY_FULL;
	command->subtype = AT_ReplicaIdentity;
	command->def = (Node *) identity;
	AlterTableInternal(partition, list_make1(command), false);
	CommandCounterIncrement();
}

bool
tessera_reads_default_partition(CreateStmt *statement)
{
	Oid			parent;

	if (statement->partbound == NULL || list_length(statement->inhRelations) != 1)
		return false;
	parent = RangeVarGetRelid(linitial_node(RangeVar, statement->inhRelations), NoLock, true);
	return OidIsValid(parent) && get_rel_relkind(parent) == RELKIND_PARTITIONED_TABLE && OidIsValid(get_default_partition_oid(parent));
}

static bool
is_referenced(Oid relid)
{
	Relation	rel = table_open(relid, AccessShareLock);
	TriggerDesc *triggers = rel->trigdesc;
	bool		found = false;

	for (int i = 0; triggers && i < triggers->numtriggers; i++)
		found |= RI_FKey_trigger_type(triggers->triggers[i].tgfoid) == RI_TRIGGER_PK;
	table_close(rel, AccessShareLock);
	return found;
}

bool
tessera_only_detaches(Node *statement)
{
	ListCell   *cell;

	if (!IsA(statement, AlterTableStmt))
		return false;
	foreach(cell, ((AlterTableStmt *) statement)->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, cell);
		Oid			relid;

		if (command->subtype != AT_DetachPartition)
			return false;
		relid = RangeVarGetRelid(castNode(PartitionCmd, command->def)->name, NoLock, true);
		if (OidIsValid(relid) && is_referenced(relid))
			return false;
	}
	return true;
}
