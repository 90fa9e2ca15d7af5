/*
 * rules.c
 *	  What tables of the cluster cannot have, checked on the router before (and for defaults, after) a statement runs.
 *
 * A sharded table's unique constraints contain its shard key, its foreign keys stay inside its group, its key columns keep name, type and NOT NULL; a
 * placed table's foreign keys stay on its shard. What reads or checks whole heaps waits until this node has no rows to hide
 * (doc/design.md#heap-level-work).
 *
 * Nothing is kept; look-ups take no locks beyond those of the system caches: the statement itself meets what has changed since.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/heap.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_expr.h"
#include "parser/parse_relation.h"
#include "rewrite/rewriteHandler.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "catalog/trigger_place.h"
#include "common/errors.h"
#include "common/version_compat.h"
#include "common/worker_registry.h"
#include "ddl/ddl.h"

/* The table a statement changes. relid is InvalidOid while it is being created. */
typedef struct Target
{
	const TesseraRouting *routing;
	Oid			relid;			/* as named: may be a partition */
	Oid			root;
	const TesseraTable *table;	/* of the root; NULL while it is being created */
	const char *name;
	int32		node_id;		/* placed: its shard; 0: not known yet */
} Target;

static const TesseraGroup *
group_of(const Target *target)
{
	return target->table && target->table->group >= 0 ? tessera_routing_group(target->routing, target->table->group) : NULL;
}

static const char *
key_name(const Target *target, int i)
{
	return get_attname(target->root, target->table->keys[i], false);
}

static int
position_of(List *names, const char *name)
{
	ListCell   *cell;

	foreach(cell, names)
	{
		Node	   *node = lfirst(cell);
		const char *other = IsA(node, IndexElem) ? ((IndexElem *) node)->name : strVal(node);

		if (other && strcmp(other, name) == 0)
			return foreach_current_index(cell);
	}
	return -1;
}

/* ---- unique ---- */

static void
check_unique(const Target *target, const char *what, List *names)
{
	if (group_of(target) == NULL)
		return;
	for (int i = 0; i < target->table->nkeys; i++)
		if (position_of(names, key_name(target, i)) < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
					 errmsg("%s on sharded table \"%s\" must contain the shard key", what, target->name),
					 errdetail("Column \"%s\" is missing: rows with different shard keys live on different shards.", key_name(target, i)),
					 errhint("Add the column to the constraint.")));
}

/* Names of an index's key columns. */
static List *
index_columns(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	List	   *names = NIL;

	if (!HeapTupleIsValid(tuple))
		return NIL;
	form = (Form_pg_index) GETSTRUCT(tuple);
	for (int i = 0; i < form->indnkeyatts; i++)
		if (form->indkey.values[i] != 0)
			names = lappend(names, makeString(get_attname(form->indrelid, form->indkey.values[i], false)));
	ReleaseSysCache(tuple);
	return names;
}

/* An exclusion constraint can be checked shard by shard if it compares the shard key by equality. */
static void
check_exclusion(const Target *target, Constraint *constraint)
{
	List	   *names = NIL;
	ListCell   *cell;

	foreach(cell, constraint->exclusions)
	{
		List	   *pair = lfirst(cell);
		List	   *operator = lsecond(pair);

		if (strcmp(strVal(llast(operator)), "=") == 0)
			names = lappend(names, linitial(pair));
	}
	check_unique(target, "an exclusion constraint with \"=\"", names);
}

/* ---- foreign keys ---- */

_Noreturn static void
refuse_foreign_key(const Target *target, Constraint *constraint, const char *why, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
			 errmsg("table \"%s\" cannot have a foreign key to \"%s\": %s", target->name, constraint->pktable->relname, why),
			 errhint("%s", hint)));
}

/* Equal shard keys on both sides, by position. */
static void
check_key_mapping(const Target *target, Constraint *constraint, Oid referenced, const TesseraTable *table, List *referencing)
{
	List	   *columns = constraint->pk_attrs;

	if (columns == NIL)
	{
		Relation	rel = table_open(referenced, AccessShareLock);

		(void) RelationGetIndexList(rel);
		if (OidIsValid(rel->rd_pkindex))
			columns = index_columns(rel->rd_pkindex);
		table_close(rel, AccessShareLock);
	}
	for (int i = 0; i < target->table->nkeys && i < table->nkeys; i++)
	{
		int			here = position_of(referencing, key_name(target, i));

		if (here < 0 || here != position_of(columns, get_attname(table->relid, table->keys[i], false)))
			refuse_foreign_key(target, constraint, "the shard keys are not among its columns, one for one",
							   "Put the shard key of both tables into the foreign key, at the same place.");
	}
}

static void
check_foreign_key(const Target *target, Constraint *constraint, List *referencing)
{
	Oid			referenced = RangeVarGetRelid(constraint->pktable, NoLock, true);
	Oid			root;
	const TesseraTable *table;

	if (!OidIsValid(referenced))
		return;					/* to itself, or an error of the statement's own */
	root = tessera_cluster_root(target->routing, referenced);
	table = OidIsValid(root) ? tessera_routing_table(target->routing, root) : NULL;
	if (table == NULL)
	{
		if (get_rel_persistence(referenced) != RELPERSISTENCE_TEMP && get_rel_relkind(referenced) == RELKIND_RELATION)
			refuse_foreign_key(target, constraint, "only this node has that table", "Create the table with tessera.replicate_ddl on.");
		return;
	}
	/* every node has all that it refers to */
	if (table->replicated)
		return;
	if (target->table != NULL && target->table->replicated)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("replicated table \"%s\" cannot have a foreign key to \"%s\", which is not replicated", target->name,
						constraint->pktable->relname),
				 errhint("Other nodes do not have the rows that it would refer to. Replicate that table first.")));
	if (group_of(target) == NULL && table->group < 0)
	{
		if (target->node_id != 0 && target->node_id != table->node_id)
			refuse_foreign_key(target, constraint, "the tables live on different shards",
							   "Put both tables into schemas of one shard, or shard both by a common key.");
		return;
	}
	if (group_of(target) == NULL || table->group < 0 || target->table->group != table->group)
		refuse_foreign_key(target, constraint, "their rows live on different shards",
						   "Shard both tables by a common key with tessera.shard_table(..., colocate_with => ...), then add the foreign key.");
	check_key_mapping(target, constraint, referenced, table, referencing);
}

static void
check_constraint(const Target *target, Constraint *constraint, const char *column)
{
	List	   *own = column ? list_make1(makeString(pstrdup(column))) : NIL;

	switch (constraint->contype)
	{
		case CONSTR_PRIMARY:
		case CONSTR_UNIQUE:
			if (constraint->indexname)
			{
				Oid			index = get_relname_relid(constraint->indexname, get_rel_namespace(target->relid));

				if (OidIsValid(index) && get_rel_relkind(index) != RELKIND_RELATION)
					check_unique(target, "a unique constraint", index_columns(index));
			}
			else
				check_unique(target, constraint->contype == CONSTR_PRIMARY ? "a primary key" : "a unique constraint",
							 constraint->keys ? constraint->keys : own);
			break;
		case CONSTR_EXCLUSION:
			check_exclusion(target, constraint);
			break;
		case CONSTR_FOREIGN:
			check_foreign_key(target, constraint, constraint->fk_attrs ? constraint->fk_attrs : own);
			break;
		default:
			break;
	}
}

static void
check_column(const Target *target, ColumnDef *column)
{
	ListCell   *cell;

	foreach(cell, column->constraints)
		check_constraint(target, lfirst_node(Constraint, cell), column->colname);
}

/* ---- ALTER TABLE ---- */

static void
check_key_column(const Target *target, const char *column, const char *what)
{
	if (group_of(target) == NULL)
		return;
	for (int i = 0; i < target->table->nkeys; i++)
		if (column && strcmp(key_name(target, i), column) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
					 errmsg("cannot %s column \"%s\" of table \"%s\": it is part of the shard key", what, column, target->name),
					 errhint("Make a new table with another shard key and copy the rows.")));
}

static void
refuse_for_sharded(const Target *target, const char *what, int code, const char *hint)
{
	if (group_of(target) != NULL)
		ereport(ERROR,
				(errcode(code),
				 errmsg("sharded table \"%s\" cannot %s", target->name, what),
				 errhint("%s", hint)));
}

static void
refuse_for_replicated(const Target *target, const char *what, const char *hint)
{
	if (target->table->replicated)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("replicated table \"%s\" cannot %s", target->name, what),
				 errhint("%s", hint)));
}

/* Each node computes the new values of its copy. */
static void
check_new_type(const Target *target, AlterTableCmd *command)
{
	Node	   *using = castNode(ColumnDef, command->def)->raw_default;
	ParseState *pstate;
	Relation	rel;

	if (!target->table->replicated || using == NULL)
		return;
	rel = table_open(target->relid, AccessShareLock);
	pstate = make_parsestate(NULL);
	addNSItemToQuery(pstate, addRangeTableEntryForRelation(pstate, rel, AccessShareLock, NULL, false, true), false, true, true);
	if (contain_mutable_functions(transformExpr(pstate, copyObject(using), EXPR_KIND_ALTER_COL_TRANSFORM)))
		refuse_for_replicated(target, psprintf("compute column \"%s\" by an expression that is not immutable", command->name),
							  "Add another column, UPDATE the rows, drop the old column, and rename the new one.");
	free_parsestate(pstate);
	table_close(rel, AccessShareLock);
}

static void
check_command(const Target *target, AlterTableCmd *command)
{
	switch (command->subtype)
	{
		case AT_AddColumn:
			check_column(target, castNode(ColumnDef, command->def));
			break;
		case AT_AddConstraint:
			check_constraint(target, castNode(Constraint, command->def), NULL);
			break;
		case AT_DropColumn:
			check_key_column(target, command->name, "drop");
			break;
		case AT_AlterColumnType:
			check_key_column(target, command->name, "change the type of");
			check_new_type(target, command);
			break;
		case AT_DropNotNull:
			check_key_column(target, command->name, "drop NOT NULL of");
			break;
		case AT_ReplicaIdentity:
			if (castNode(ReplicaIdentityStmt, command->def)->identity_type == REPLICA_IDENTITY_NOTHING)
				refuse_for_sharded(target, "have REPLICA IDENTITY NOTHING", ERRCODE_INVALID_TABLE_DEFINITION,
								   "Migrations find changed rows by their identity: use DEFAULT with a primary key, or FULL.");
			break;
		case AT_SetUnLogged:
			refuse_for_sharded(target, "be unlogged", ERRCODE_INVALID_TABLE_DEFINITION, "Migrations read changes from the write-ahead log.");
			refuse_for_replicated(target, "be unlogged", "A crash of one node would empty its copy. Use tessera.unreplicate_table before.");
			break;
		case AT_AddInherit:
		case AT_DropInherit:
			refuse_for_sharded(target, "take part in inheritance", ERRCODE_FEATURE_NOT_SUPPORTED,
							   "Use CREATE TABLE ... (LIKE ...), and shard both tables.");
			refuse_for_replicated(target, "take part in inheritance", "Use tessera.unreplicate_table before.");
			break;
		default:
			break;
	}
}

static bool
find_target(Target *target, const TesseraRouting *routing, RangeVar *relation)
{
	memset(target, 0, sizeof(*target));
	target->routing = routing;
	target->relid = RangeVarGetRelid(relation, NoLock, true);
	target->root = OidIsValid(target->relid) ? tessera_cluster_root(routing, target->relid) : InvalidOid;
	if (!OidIsValid(target->root))
		return false;
	target->table = tessera_routing_table(routing, target->root);
	target->name = relation->relname;
	target->node_id = target->table->group < 0 ? target->table->node_id : 0;
	return true;
}

/* A partition to be attached lies where its new root lies: on the same shard, or sharded alike. */
static void
check_new_partition(const Target *target, AlterTableCmd *command)
{
	Target		partition;

	if (command->subtype == AT_AddInherit && find_target(&partition, target->routing, castNode(RangeVar, command->def)))
		refuse_for_replicated(&partition, "take part in inheritance", "Use tessera.unreplicate_table before.");
	if (command->subtype != AT_AttachPartition || !IsA(command->def, PartitionCmd))
		return;
	if (find_target(&partition, target->routing, ((PartitionCmd *) command->def)->name))
	{
		if (partition.root == target->root)
			return;
		refuse_for_replicated(&partition, "become a partition", "Use tessera.unreplicate_table before.");
	}
	if (group_of(target) != NULL)
		tessera_check_attached(target->routing, target->table, ((PartitionCmd *) command->def)->name);
	else if (partition.table != NULL && (group_of(&partition) != NULL || partition.node_id != target->node_id))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot attach table \"%s\" to \"%s\": their rows live on different shards", partition.name, target->name),
				 errhint("Use CREATE TABLE ... PARTITION OF, and copy the rows.")));
}

static void
check_alter_table(AlterTableStmt *statement, const TesseraRouting *routing)
{
	Target		target;
	ListCell   *cell;

	if (!find_target(&target, routing, statement->relation))
		return;
	foreach(cell, statement->cmds)
	{
		check_command(&target, lfirst_node(AlterTableCmd, cell));
		check_new_partition(&target, lfirst_node(AlterTableCmd, cell));
	}
}

/* ---- CREATE TABLE, INDEX, RULE ---- */

/* Shard of the tables of a schema, if any is known from its tables; 0: not known. */
static int32
shard_of_schema(const TesseraRouting *routing, Oid namespace)
{
	const TesseraTable *tables = (const TesseraTable *) ((const char *) routing + routing->tables_offset);

	for (int i = 0; i < routing->ntables; i++)
		if (tables[i].group < 0 && get_rel_namespace(tables[i].relid) == namespace)
			return tables[i].node_id;
	return 0;
}

static void
check_create_table(CreateStmt *statement, const TesseraRouting *routing)
{
	Target		target = {.routing = routing, .name = statement->relation->relname};
	ListCell   *cell;

	foreach(cell, statement->inhRelations)
	{
		Target		parent;

		if (!find_target(&parent, routing, lfirst_node(RangeVar, cell)))
			continue;
		if (statement->partbound)
		{
			if (statement->relation->relpersistence == RELPERSISTENCE_UNLOGGED)
				refuse_for_sharded(&parent, "have unlogged partitions", ERRCODE_INVALID_TABLE_DEFINITION,
								   "Migrations read changes from the write-ahead log.");
			target.table = parent.table;
			target.root = parent.root;
			target.node_id = parent.node_id;
		}
		else
			refuse_for_sharded(&parent, "take part in inheritance", ERRCODE_FEATURE_NOT_SUPPORTED,
							   "Use CREATE TABLE ... (LIKE ...), and shard both tables.");
		refuse_for_replicated(&parent, "take part in inheritance", "Use CREATE TABLE ... (LIKE ...).");
	}
	if (target.table == NULL)
	{
		Oid			namespace = statement->relation->schemaname ? get_namespace_oid(statement->relation->schemaname, true) :
			RangeVarGetCreationNamespace(statement->relation);

		target.node_id = OidIsValid(namespace) ? shard_of_schema(routing, namespace) : 0;
	}
	foreach(cell, statement->tableElts)
	{
		Node	   *element = lfirst(cell);

		if (IsA(element, ColumnDef))
			check_column(&target, (ColumnDef *) element);
		else if (IsA(element, Constraint))
			check_constraint(&target, (Constraint *) element, NULL);
	}
	foreach(cell, statement->constraints)
		check_constraint(&target, lfirst_node(Constraint, cell), NULL);
}

static void
check_create_foreign_table(CreateForeignTableStmt *statement, const TesseraRouting *routing)
{
	ListCell   *cell;

	foreach(cell, statement->base.inhRelations)
	{
		Target		parent;

		if (find_target(&parent, routing, lfirst_node(RangeVar, cell)))
			refuse_for_sharded(&parent, "have foreign tables as partitions", ERRCODE_FEATURE_NOT_SUPPORTED,
							   "Copy the rows into an ordinary partition.");
	}
}

static void
check_create_index(IndexStmt *statement, const TesseraRouting *routing)
{
	Target		target;

	if (statement->unique && find_target(&target, routing, statement->relation))
		check_unique(&target, "a unique index", statement->indexParams);
}

static void
check_create_rule(RuleStmt *statement, const TesseraRouting *routing)
{
	Target		target;

	if (find_target(&target, routing, statement->relation))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("rules on tables of the cluster are not supported"),
				 errhint("Use a trigger, or a view with a rule.")));
}

/* Its name has an OID, and so may mean it on one node only. */
static void
check_drop_trigger(const DropStmt *statement, const TesseraRouting *routing)
{
	ListCell   *cell;

	foreach(cell, statement->objects)
	{
		List	   *name = statement->removeType == OBJECT_TRIGGER ? castNode(List, lfirst(cell)) : NIL;
		Target		target;

		if (list_length(name) < 2 || strncmp(strVal(llast(name)), "tessera_replicated_", strlen("tessera_replicated_")) != 0 ||
			!find_target(&target, routing, makeRangeVarFromNameList(list_truncate(list_copy(name), list_length(name) - 1))))
			continue;
		refuse_for_replicated(&target, "lose the trigger that captures its rows", "Use tessera.unreplicate_table.");
	}
}

void
tessera_rules_before(Node *statement, const TesseraRouting *routing)
{
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			check_alter_table((AlterTableStmt *) statement, routing);
			break;
		case T_CreateStmt:
			check_create_table((CreateStmt *) statement, routing);
			break;
		case T_CreateForeignTableStmt:
			check_create_foreign_table((CreateForeignTableStmt *) statement, routing);
			break;
		case T_IndexStmt:
			check_create_index((IndexStmt *) statement, routing);
			break;
		case T_RuleStmt:
			check_create_rule((RuleStmt *) statement, routing);
			break;
		case T_DropStmt:
			check_drop_trigger((DropStmt *) statement, routing);
			break;
		default:
			break;
	}
}

/* ---- after ---- */

/* For check_functions_in_node: another node may answer otherwise, in the same transaction, as the same user, with the same settings. */
static bool
function_differs(Oid function, void *context)
{
	const char *name;

	if (func_volatile(function) == PROVOLATILE_IMMUTABLE)
		return false;
	if (function >= FirstNormalObjectId || func_volatile(function) == PROVOLATILE_VOLATILE)
		return true;
	name = get_func_name(function);
	return name == NULL || strcmp(name, "current_database") == 0 || tessera_tells_of_session(name);
}

/* A setting of an application is the session's, on all nodes; others may be the server's, and Tessera's are each node's own. */
static bool
names_own_setting(Node *node)
{
	const Const *constant = (const Const *) node;
	const char *name;

	if (!IsA(node, Const) || constant->constisnull)
		return false;
	name = TextDatumGetCString(constant->constvalue);
	return strchr(name, '.') != NULL && pg_strncasecmp(name, "tessera.", 8) != 0;
}

/* True if each shard may compute another value. The time is one on all of them (doc/design.md#one-time). */
static bool
differs_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr) && (((FuncExpr *) node)->funcid == F_CURRENT_SETTING_TEXT || ((FuncExpr *) node)->funcid == F_CURRENT_SETTING_TEXT_BOOL))
	{
		if (!names_own_setting(linitial(((FuncExpr *) node)->args)))
			return true;
	}
	else if (check_functions_in_node(node, function_differs, NULL))
		return true;
	if (IsA(node, SQLValueFunction) && ((SQLValueFunction *) node)->op == SVFOP_CURRENT_CATALOG)
		return true;
	return IsA(node, NextValueExpr) || expression_tree_walker(node, differs_walker, context);
}

/*
 * True if the value that an added column gets in existing rows would differ between shards; of a replicated table between its copies, among them
 * those of nodes that are not told the time yet while a cluster is upgraded.
 */
static bool
default_differs(const Target *target, const char *column)
{
	AttrNumber	attnum = get_attnum(target->relid, column);
	Relation	rel = relation_open(target->relid, NoLock);
	bool		result = false;

	if (attnum != InvalidAttrNumber)
	{
		Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(rel), attnum - 1);

		if (attribute->attidentity != '\0')
			result = true;
		else if (attribute->atthasdef && attribute->attgenerated == '\0')
			result = target->table->replicated ? contain_mutable_functions(build_column_default(rel, attnum)) :
				differs_walker(build_column_default(rel, attnum), NULL);
	}
	relation_close(rel, NoLock);
	return result;
}

static void
check_added_column(const Target *target, const char *column)
{
	if (!default_differs(target, column))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 target->table->replicated ?
			 errmsg("cannot add column \"%s\" with a default that is not constant to replicated table \"%s\"", column, target->name) :
			 errmsg("cannot add column \"%s\" with a default that differs by shard to sharded table \"%s\"", column, target->name),
			 errdetail("Each %s would compute values of its own for the rows that exist.", target->table->replicated ? "node" : "shard"),
			 errhint("Add the column without a default, then ALTER COLUMN ... SET DEFAULT, then UPDATE the rows.")));
}

/* By a constraint that is dropped, or a column. */
static void
check_still_has_key(const Target *target)
{
	Relation	rel = table_open(target->relid, NoLock);

	if (!OidIsValid(tessera_primary_key(rel)))
		refuse_for_replicated(target, "lose its primary key", "The rows of the copies are found by it. Use tessera.unreplicate_table before.");
	table_close(rel, NoLock);
}

void
tessera_rules_after(Node *statement, const TesseraRouting *routing)
{
	Target		target;
	ListCell   *cell;

	if (!IsA(statement, AlterTableStmt) || !find_target(&target, routing, ((AlterTableStmt *) statement)->relation) ||
		(group_of(&target) == NULL && !target.table->replicated))
		return;
	CommandCounterIncrement();
	foreach(cell, ((AlterTableStmt *) statement)->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, cell);

		if (command->subtype == AT_AddColumn)
			check_added_column(&target, castNode(ColumnDef, command->def)->colname);
	}
	if (target.table->replicated)
		check_still_has_key(&target);
}

/* ---- rows to hide ---- */

static bool
command_reads_heap(AlterTableCmd *command)
{
	switch (command->subtype)
	{
		case AT_AddConstraint:
			return !castNode(Constraint, command->def)->skip_validation;
		case AT_SetNotNull:
		case AT_ValidateConstraint:
		case AT_AlterColumnType:
		case AT_AddColumn:
		case AT_AttachPartition:
		case AT_DetachPartition:	/* the rows would be another table's */
			return true;
		default:
			return false;
	}
}

static bool
reads_heap(Node *statement)
{
	ListCell   *cell;

	if (IsA(statement, IndexStmt))
		return ((IndexStmt *) statement)->unique;
	if (IsA(statement, AlterObjectSchemaStmt))
		return true;			/* the rows to be deleted would be another schema's */
	if (IsA(statement, CreateStmt))
		return tessera_reads_default_partition((CreateStmt *) statement);
	if (!IsA(statement, AlterTableStmt))
		return false;
	foreach(cell, ((AlterTableStmt *) statement)->cmds)
		if (command_reads_heap(lfirst_node(AlterTableCmd, cell)))
			return true;
	return false;
}

/* The tables, and those that are attached to them or detached. */
static List *
with_partitions(Node *statement, const TesseraRouting *routing, List *relids)
{
	List	   *result = list_copy(relids);
	ListCell   *cell;

	if (!IsA(statement, AlterTableStmt))
		return result;
	foreach(cell, ((AlterTableStmt *) statement)->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, cell);
		Target		partition;

		if (command->def != NULL && IsA(command->def, PartitionCmd) && ((PartitionCmd *) command->def)->name != NULL &&
			find_target(&partition, routing, ((PartitionCmd *) command->def)->name))
			result = list_append_unique_oid(result, partition.root);
	}
	return result;
}

void
tessera_rules_hidden_rows(Node *statement, const TesseraRouting *routing, List *relids)
{
	ListCell   *cell;

	if (relids == NIL || !reads_heap(statement))
		return;
	relids = with_partitions(statement, routing, relids);
	foreach(cell, relids)
	{
		const TesseraTable *table = tessera_routing_table(routing, lfirst_oid(cell));
		const TesseraPlacement *placement = NULL;
		bool		newest;

		/* the rows to be deleted go with it, as the deletion goes by the group */
		if (table && table->group >= 0 && tessera_only_detaches(statement))
			continue;
		if (table && table->placement_group >= 0)
			placement = tessera_placement_as_of(routing, tessera_table_placement_group(routing, table), InvalidSnapshot, &newest);
		if (placement == NULL || !placement->hides)
			continue;
		(void) tessera_worker_wake(TESSERA_RANGE_DELETER);
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_CONFLICTING),
				 errmsg("rows of table \"%s\" that moved away have not been deleted yet", get_rel_name(table->relid)),
				 errhint("Try again when tessera.range_deletions is empty on every shard.")));
	}
}
