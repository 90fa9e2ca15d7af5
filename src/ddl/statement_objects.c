/*
 * statement_objects.c
 *	  What a DDL statement names: tables of the cluster, things every node has, things only this node has.
 *
 * A name that does not exist (yet) counts as the cluster's: the statement itself says what is wrong with it. Names are looked up without locks;
 * between here and the statement they may change hands, as in any two statements.
 *
 * Memory: lists in the current context.
 */
#include "postgres.h"

#include "access/genam.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "commands/extension.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "common/text.h"
#include "ddl/ddl.h"

#define EXTENSION "tessera"

Oid
tessera_cluster_root(const TesseraRouting *routing, Oid relid)
{
	char		relkind = get_rel_relkind(relid);

	if (relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX)
	{
		relid = IndexGetRelation(relid, true);
		relkind = OidIsValid(relid) ? get_rel_relkind(relid) : 0;
	}
	if (relkind != RELKIND_RELATION && relkind != RELKIND_PARTITIONED_TABLE && relkind != RELKIND_MATVIEW)
		return InvalidOid;
	if (get_rel_relispartition(relid))
	{
		List	   *ancestors = get_partition_ancestors(relid);
		Oid			root = ancestors == NIL ? InvalidOid : llast_oid(ancestors);

		if (OidIsValid(root) && tessera_routing_table(routing, root) != NULL)
			return root;
	}
	return tessera_routing_table(routing, relid) != NULL ? relid : InvalidOid;
}

static void
add_key(TesseraStatementObjects *named, const char *key)
{
	ListCell   *cell;

	foreach(cell, named->keys)
		if (strcmp(lfirst(cell), key) == 0)
			return;
	named->keys = lappend(named->keys, pstrdup(key));
}

static bool
is_own_schema(Oid namespace)
{
	return IsCatalogNamespace(namespace) || IsToastNamespace(namespace) || namespace == get_namespace_oid(EXTENSION, true);
}

/* A relation that exists. */
static void
add_relid(TesseraStatementObjects *named, const TesseraRouting *routing, Oid relid)
{
	char		relkind = get_rel_relkind(relid);
	char	   *name = get_rel_name(relid);
	Oid			namespace = get_rel_namespace(relid);
	Oid			owner;
	int32		column;

	if (name == NULL)
		return;
	if (relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX)
	{
		Oid			table = IndexGetRelation(relid, true);

		if (OidIsValid(table))
			add_relid(named, routing, table);
		return;
	}
	if (get_rel_persistence(relid) == RELPERSISTENCE_TEMP || is_own_schema(namespace))
	{
		named->local = name;
		return;
	}
	if (relkind == RELKIND_SEQUENCE &&
		(sequenceIsOwned(relid, DEPENDENCY_AUTO, &owner, &column) || sequenceIsOwned(relid, DEPENDENCY_INTERNAL, &owner, &column)))
	{
		add_relid(named, routing, owner);
		return;
	}
	if (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE || relkind == RELKIND_MATVIEW)
	{
		Oid			root = tessera_cluster_root(routing, relid);

		if (OidIsValid(root))
			named->relids = list_append_unique_oid(named->relids, root);
		else if (!tessera_track_created(relid) && !OidIsValid(getExtensionOfObject(RelationRelationId, relid)))
		{
			named->local = name;
			return;
		}
	}
	named->cluster = name;
	named->namespaces = list_append_unique_oid(named->namespaces, namespace);
	add_key(named, psprintf("relation %s", tessera_quote_qualified(get_namespace_name(namespace), name)));
}

static void
add_relation(TesseraStatementObjects *named, const TesseraRouting *routing, RangeVar *relation)
{
	Oid			relid;

	if (relation == NULL)
		return;
	relid = RangeVarGetRelid(relation, NoLock, true);
	if (OidIsValid(relid))
	{
		named->written = list_append_unique_oid(named->written, relid);
		add_relid(named, routing, relid);
	}
	else
		named->cluster = relation->relname;
}

/* A relation to be created. */
static void
add_new_relation(TesseraStatementObjects *named, RangeVar *relation)
{
	Oid			namespace;

	if (relation->relpersistence == RELPERSISTENCE_TEMP || (relation->schemaname && strcmp(relation->schemaname, "pg_temp") == 0))
	{
		named->local = relation->relname;
		return;
	}
	namespace = relation->schemaname ? get_namespace_oid(relation->schemaname, true) : RangeVarGetCreationNamespace(relation);
	if (OidIsValid(namespace) && (isAnyTempNamespace(namespace) || is_own_schema(namespace)))
	{
		named->local = relation->relname;
		return;
	}
	named->cluster = relation->relname;
	if (!OidIsValid(namespace))
		return;
	named->namespaces = list_append_unique_oid(named->namespaces, namespace);
	named->makes_in = list_append_unique_oid(named->makes_in, namespace);
	add_key(named, psprintf("relation %s", tessera_quote_qualified(get_namespace_name(namespace), relation->relname)));
}

/* True if a query as it is written names a temporary relation: a view of it is a temporary one, wherever its name would be. */
static bool
names_temporary(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeVar))
	{
		Oid			relid = RangeVarGetRelid((RangeVar *) node, NoLock, true);

		return OidIsValid(relid) && get_rel_persistence(relid) == RELPERSISTENCE_TEMP;
	}
	return raw_expression_tree_walker(node, names_temporary, context);
}

/* A qualified name of anything else. */
static void
add_names(TesseraStatementObjects *named, Node *statement, List *names)
{
	const char *name;

	if (names == NIL || !IsA(linitial(names), String))
		return;
	name = strVal(llast(names));
	if (list_length(names) > 1 && (strcmp(strVal(linitial(names)), "pg_temp") == 0 || strcmp(strVal(linitial(names)), EXTENSION) == 0))
		named->local = name;
	else
	{
		named->cluster = name;
		add_key(named, psprintf("%s %s", CreateCommandName(statement), NameListToString(names)));
	}
}

/* One object of COMMENT, DROP and the like. */
static void
add_object(TesseraStatementObjects *named, const TesseraRouting *routing, Node *statement, ObjectType type, Node *object)
{
	List	   *names = IsA(object, List) ? (List *) object : NIL;

	switch (type)
	{
		case OBJECT_TABLE:
		case OBJECT_INDEX:
		case OBJECT_SEQUENCE:
		case OBJECT_VIEW:
		case OBJECT_MATVIEW:
		case OBJECT_FOREIGN_TABLE:
			if (IsA(object, RangeVar))
				add_relation(named, routing, (RangeVar *) object);
			else if (names != NIL)
				add_relation(named, routing, makeRangeVarFromNameList(names));
			break;
		case OBJECT_COLUMN:
		case OBJECT_TABCONSTRAINT:
		case OBJECT_TRIGGER:
		case OBJECT_RULE:
		case OBJECT_POLICY:
			if (list_length(names) > 1)
				add_relation(named, routing, makeRangeVarFromNameList(list_truncate(list_copy(names), list_length(names) - 1)));
			break;
		case OBJECT_EXTENSION:
			if (IsA(object, String) && strcmp(strVal(object), EXTENSION) == 0)
				named->local = EXTENSION;
			else if (IsA(object, String))
				add_key(named, psprintf("extension %s", strVal(object)));
			break;
		case OBJECT_SCHEMA:
			if (IsA(object, String))
			{
				named->cluster = strVal(object);
				add_key(named, psprintf("schema %s", tessera_quote(strVal(object))));
			}
			break;
		default:
			if (IsA(object, TypeName))
				names = ((TypeName *) object)->names;
			else if (IsA(object, ObjectWithArgs))
				names = ((ObjectWithArgs *) object)->objname;
			else if (IsA(object, String))
				names = list_make1(object);
			add_names(named, statement, names);
			break;
	}
}

static void
add_objects(TesseraStatementObjects *named, const TesseraRouting *routing, Node *statement, ObjectType type, List *objects)
{
	ListCell   *cell;

	foreach(cell, objects)
		add_object(named, routing, statement, type, lfirst(cell));
}

static void
add_extension(TesseraStatementObjects *named, const char *name)
{
	if (strcmp(name, EXTENSION) == 0)
		named->local = name;
	else
	{
		named->cluster = name;
		add_key(named, psprintf("extension %s", name));
	}
}

/* CREATE TABLE: a partition or child of a table of this node alone stays with it. */
static void
add_create_table(TesseraStatementObjects *named, const TesseraRouting *routing, CreateStmt *statement)
{
	ListCell   *cell;

	add_new_relation(named, statement->relation);
	foreach(cell, statement->inhRelations)
	{
		TesseraStatementObjects parent = {0};

		add_relation(&parent, routing, lfirst_node(RangeVar, cell));
		if (parent.local != NULL && named->local == NULL && parent.cluster == NULL)
		{
			named->local = statement->relation->relname;
			named->cluster = NULL;
		}
		else if (named->local == NULL)
		{
			named->relids = list_concat_unique_oid(named->relids, parent.relids);
			named->keys = list_concat(named->keys, parent.keys);
			named->namespaces = list_concat_unique_oid(named->namespaces, parent.namespaces);
			named->written = list_concat_unique_oid(named->written, parent.written);
		}
	}
}

static void
describe_relation_statement(TesseraStatementObjects *named, const TesseraRouting *routing, Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateStmt:
			add_create_table(named, routing, (CreateStmt *) statement);
			break;
		case T_CreateForeignTableStmt:
			add_new_relation(named, ((CreateForeignTableStmt *) statement)->base.relation);
			break;
		case T_CreateSeqStmt:
			add_new_relation(named, ((CreateSeqStmt *) statement)->sequence);
			break;
		case T_CreateTableAsStmt:
			add_new_relation(named, ((CreateTableAsStmt *) statement)->into->rel);
			/* core only says that it is there */
			if (((CreateTableAsStmt *) statement)->if_not_exists &&
				OidIsValid(RangeVarGetRelid(((CreateTableAsStmt *) statement)->into->rel, NoLock, true)))
				named->makes_in = NIL;
			break;
		case T_RefreshMatViewStmt:
			add_relation(named, routing, ((RefreshMatViewStmt *) statement)->relation);
			break;
		case T_ViewStmt:
			add_new_relation(named, ((ViewStmt *) statement)->view);
			if (names_temporary(((ViewStmt *) statement)->query, NULL))
				named->makes_in = NIL;
			break;
		case T_CompositeTypeStmt:
			add_new_relation(named, ((CompositeTypeStmt *) statement)->typevar);
			break;
		case T_AlterSeqStmt:
			add_relation(named, routing, ((AlterSeqStmt *) statement)->sequence);
			break;
		case T_AlterTableStmt:
			add_relation(named, routing, ((AlterTableStmt *) statement)->relation);
			break;
		case T_IndexStmt:
			add_relation(named, routing, ((IndexStmt *) statement)->relation);
			break;
		case T_CreateTrigStmt:
			add_relation(named, routing, ((CreateTrigStmt *) statement)->relation);
			break;
		case T_CreatePolicyStmt:
			add_relation(named, routing, ((CreatePolicyStmt *) statement)->table);
			break;
		case T_AlterPolicyStmt:
			add_relation(named, routing, ((AlterPolicyStmt *) statement)->table);
			break;
		case T_RuleStmt:
			add_relation(named, routing, ((RuleStmt *) statement)->relation);
			break;
		case T_CreateStatsStmt:
			add_objects(named, routing, statement, OBJECT_TABLE, ((CreateStatsStmt *) statement)->relations);
			break;
		case T_TruncateStmt:
			add_objects(named, routing, statement, OBJECT_TABLE, ((TruncateStmt *) statement)->relations);
			break;
		case T_LockStmt:
			add_objects(named, routing, statement, OBJECT_TABLE, ((LockStmt *) statement)->relations);
			break;
		default:
			break;
	}
}

/* SET SCHEMA of a relation: what it is to be. */
static void
add_new_schema(TesseraStatementObjects *named, const AlterObjectSchemaStmt *statement)
{
	Oid			namespace = statement->relation != NULL && named->cluster != NULL ? get_namespace_oid(statement->newschema, true) : InvalidOid;

	if (!OidIsValid(namespace))
		return;
	named->namespaces = list_append_unique_oid(named->namespaces, namespace);
	if (named->written != NIL)
		named->makes_in = list_append_unique_oid(named->makes_in, namespace);
	add_key(named, psprintf("relation %s", tessera_quote_qualified(statement->newschema, statement->relation->relname)));
}

/* RENAME, SET SCHEMA, DEPENDS ON: a relation, or another object. */
static void
add_relation_or_object(TesseraStatementObjects *named, const TesseraRouting *routing, Node *statement, ObjectType type, RangeVar *relation,
						Node *object)
{
	if (relation)
		add_relation(named, routing, relation);
	else if (object)
		add_object(named, routing, statement, type, object);
}

/* GRANT and REVOKE leave relations as they are of which the user may grant nothing: core warns of them. */
static void
add_granted(TesseraStatementObjects *named, const TesseraRouting *routing, GrantStmt *statement)
{
	bool		passed_over = false;
	ListCell   *cell;

	if (statement->targtype != ACL_TARGET_OBJECT)
		return;
	foreach(cell, statement->objects)
	{
		Node	   *object = lfirst(cell);
		Oid			relid = IsA(object, RangeVar) ? RangeVarGetRelid((RangeVar *) object, NoLock, true) : InvalidOid;

		if (OidIsValid(relid) && !tessera_ddl_may_grant(relid))
			passed_over = true;
		else
			add_object(named, routing, (Node *) statement, statement->objtype, object);
	}
	named->grants_nothing = passed_over && named->cluster == NULL && named->local == NULL;
}

static void
describe_other_statement(TesseraStatementObjects *named, const TesseraRouting *routing, Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_RenameStmt:
			add_relation_or_object(named, routing, statement, ((RenameStmt *) statement)->renameType, ((RenameStmt *) statement)->relation,
								   ((RenameStmt *) statement)->object);
			break;
		case T_AlterObjectSchemaStmt:
			add_relation_or_object(named, routing, statement, ((AlterObjectSchemaStmt *) statement)->objectType,
								   ((AlterObjectSchemaStmt *) statement)->relation, ((AlterObjectSchemaStmt *) statement)->object);
			add_new_schema(named, (AlterObjectSchemaStmt *) statement);
			break;
		case T_AlterObjectDependsStmt:
			add_relation_or_object(named, routing, statement, ((AlterObjectDependsStmt *) statement)->objectType,
								   ((AlterObjectDependsStmt *) statement)->relation, ((AlterObjectDependsStmt *) statement)->object);
			break;
		case T_AlterOwnerStmt:
			add_relation_or_object(named, routing, statement, ((AlterOwnerStmt *) statement)->objectType, ((AlterOwnerStmt *) statement)->relation,
								   ((AlterOwnerStmt *) statement)->object);
			break;
		case T_DropStmt:
			add_objects(named, routing, statement, ((DropStmt *) statement)->removeType, ((DropStmt *) statement)->objects);
			break;
		case T_CommentStmt:
			add_object(named, routing, statement, ((CommentStmt *) statement)->objtype, ((CommentStmt *) statement)->object);
			break;
		case T_SecLabelStmt:
			add_object(named, routing, statement, ((SecLabelStmt *) statement)->objtype, ((SecLabelStmt *) statement)->object);
			break;
		case T_GrantStmt:
			add_granted(named, routing, (GrantStmt *) statement);
			break;
		case T_DefineStmt:
			add_names(named, statement, ((DefineStmt *) statement)->defnames);
			break;
		case T_CreateFunctionStmt:
			add_names(named, statement, ((CreateFunctionStmt *) statement)->funcname);
			break;
		case T_CreateDomainStmt:
			add_names(named, statement, ((CreateDomainStmt *) statement)->domainname);
			break;
		case T_AlterDomainStmt:
			add_names(named, statement, ((AlterDomainStmt *) statement)->typeName);
			break;
		case T_CreateEnumStmt:
			add_names(named, statement, ((CreateEnumStmt *) statement)->typeName);
			break;
		case T_AlterEnumStmt:
			add_names(named, statement, ((AlterEnumStmt *) statement)->typeName);
			break;
		case T_CreateRangeStmt:
			add_names(named, statement, ((CreateRangeStmt *) statement)->typeName);
			break;
		case T_CreateExtensionStmt:
			add_extension(named, ((CreateExtensionStmt *) statement)->extname);
			break;
		case T_AlterExtensionStmt:
			add_extension(named, ((AlterExtensionStmt *) statement)->extname);
			break;
		case T_AlterExtensionContentsStmt:
			add_extension(named, ((AlterExtensionContentsStmt *) statement)->extname);
			break;
		default:
			break;
	}
}

void
tessera_statement_objects(Node *statement, const TesseraRouting *routing, TesseraStatementObjects *named)
{
	describe_relation_statement(named, routing, statement);
	describe_other_statement(named, routing, statement);
	if (named->keys == NIL && named->local == NULL)
		named->keys = tessera_statement_names(statement);
}
