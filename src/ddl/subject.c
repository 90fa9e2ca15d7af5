/*
 * subject.c
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
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

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
add_key(TesseraSubject *subject, const char *key)
{
	ListCell   *cell;

	foreach(cell, subject->keys)
		if (strcmp(lfirst(cell), key) == 0)
			return;
	subject->keys = lappend(subject->keys, pstrdup(key));
}

static bool
is_own_schema(Oid namespace)
{
	return IsCatalogNamespace(namespace) || IsToastNamespace(namespace) || namespace == get_namespace_oid(EXTENSION, true);
}

/* A relation that exists. */
static void
add_relid(TesseraSubject *subject, const TesseraRouting *routing, Oid relid)
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
			add_relid(subject, routing, table);
		return;
	}
	if (get_rel_persistence(relid) == RELPERSISTENCE_TEMP || is_own_schema(namespace))
	{
		subject->local = name;
		return;
	}
	if (relkind == RELKIND_SEQUENCE &&
		(sequenceIsOwned(relid, DEPENDENCY_AUTO, &owner, &column) || sequenceIsOwned(relid, DEPENDENCY_INTERNAL, &owner, &column)))
	{
		add_relid(subject, routing, owner);
		return;
	}
	if (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE || relkind == RELKIND_MATVIEW)
	{
		Oid			root = tessera_cluster_root(routing, relid);

		if (OidIsValid(root))
			subject->relids = list_append_unique_oid(subject->relids, root);
		else if (!tessera_track_created(relid) && !OidIsValid(getExtensionOfObject(RelationRelationId, relid)))
		{
			subject->local = name;
			return;
		}
	}
	subject->cluster = name;
	add_key(subject, psprintf("relation %s", quote_qualified_identifier(get_namespace_name(namespace), name)));
}

static void
add_relation(TesseraSubject *subject, const TesseraRouting *routing, RangeVar *relation)
{
	Oid			relid;

	if (relation == NULL)
		return;
	relid = RangeVarGetRelid(relation, NoLock, true);
	if (OidIsValid(relid))
		add_relid(subject, routing, relid);
	else
		subject->cluster = relation->relname;
}

/* A relation to be created. */
static void
add_new_relation(TesseraSubject *subject, RangeVar *relation)
{
	Oid			namespace;

	if (relation->relpersistence == RELPERSISTENCE_TEMP || (relation->schemaname && strcmp(relation->schemaname, "pg_temp") == 0))
	{
		subject->local = relation->relname;
		return;
	}
	namespace = relation->schemaname ? get_namespace_oid(relation->schemaname, true) : RangeVarGetCreationNamespace(relation);
	if (OidIsValid(namespace) && (isAnyTempNamespace(namespace) || is_own_schema(namespace)))
	{
		subject->local = relation->relname;
		return;
	}
	subject->cluster = relation->relname;
	if (OidIsValid(namespace))
		add_key(subject, psprintf("relation %s", quote_qualified_identifier(get_namespace_name(namespace), relation->relname)));
}

/* A qualified name of anything else. */
static void
add_names(TesseraSubject *subject, Node *statement, List *names)
{
	const char *name;

	if (names == NIL || !IsA(linitial(names), String))
		return;
	name = strVal(llast(names));
	if (list_length(names) > 1 && (strcmp(strVal(linitial(names)), "pg_temp") == 0 || strcmp(strVal(linitial(names)), EXTENSION) == 0))
		subject->local = name;
	else
	{
		subject->cluster = name;
		add_key(subject, psprintf("%s %s", CreateCommandName(statement), NameListToString(names)));
	}
}

/* One object of COMMENT, DROP and the like. */
static void
add_object(TesseraSubject *subject, const TesseraRouting *routing, Node *statement, ObjectType type, Node *object)
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
				add_relation(subject, routing, (RangeVar *) object);
			else if (names != NIL)
				add_relation(subject, routing, makeRangeVarFromNameList(names));
			break;
		case OBJECT_COLUMN:
		case OBJECT_TABCONSTRAINT:
		case OBJECT_TRIGGER:
		case OBJECT_RULE:
		case OBJECT_POLICY:
			if (list_length(names) > 1)
				add_relation(subject, routing, makeRangeVarFromNameList(list_truncate(list_copy(names), list_length(names) - 1)));
			break;
		case OBJECT_EXTENSION:
			if (IsA(object, String) && strcmp(strVal(object), EXTENSION) == 0)
				subject->local = EXTENSION;
			break;
		default:
			if (IsA(object, TypeName))
				names = ((TypeName *) object)->names;
			else if (IsA(object, ObjectWithArgs))
				names = ((ObjectWithArgs *) object)->objname;
			else if (IsA(object, String))
				names = list_make1(object);
			add_names(subject, statement, names);
			break;
	}
}

static void
add_objects(TesseraSubject *subject, const TesseraRouting *routing, Node *statement, ObjectType type, List *objects)
{
	ListCell   *cell;

	foreach(cell, objects)
		add_object(subject, routing, statement, type, lfirst(cell));
}

static void
add_extension(TesseraSubject *subject, const char *name)
{
	if (strcmp(name, EXTENSION) == 0)
		subject->local = name;
	else
	{
		subject->cluster = name;
		add_key(subject, psprintf("extension %s", name));
	}
}

/* CREATE TABLE: a partition or child of a table of this node alone stays with it. */
static void
add_create_table(TesseraSubject *subject, const TesseraRouting *routing, CreateStmt *statement)
{
	ListCell   *cell;

	add_new_relation(subject, statement->relation);
	foreach(cell, statement->inhRelations)
	{
		TesseraSubject parent = {0};

		add_relation(&parent, routing, lfirst_node(RangeVar, cell));
		if (parent.local != NULL && subject->local == NULL && parent.cluster == NULL)
		{
			subject->local = statement->relation->relname;
			subject->cluster = NULL;
		}
		else if (subject->local == NULL)
		{
			subject->relids = list_concat_unique_oid(subject->relids, parent.relids);
			subject->keys = list_concat(subject->keys, parent.keys);
		}
	}
}

static void
describe_relation_statement(TesseraSubject *subject, const TesseraRouting *routing, Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateStmt:
			add_create_table(subject, routing, (CreateStmt *) statement);
			break;
		case T_CreateForeignTableStmt:
			add_new_relation(subject, ((CreateForeignTableStmt *) statement)->base.relation);
			break;
		case T_CreateSeqStmt:
			add_new_relation(subject, ((CreateSeqStmt *) statement)->sequence);
			break;
		case T_CreateTableAsStmt:
			add_new_relation(subject, ((CreateTableAsStmt *) statement)->into->rel);
			break;
		case T_RefreshMatViewStmt:
			add_relation(subject, routing, ((RefreshMatViewStmt *) statement)->relation);
			break;
		case T_ViewStmt:
			add_new_relation(subject, ((ViewStmt *) statement)->view);
			break;
		case T_CompositeTypeStmt:
			add_new_relation(subject, ((CompositeTypeStmt *) statement)->typevar);
			break;
		case T_AlterSeqStmt:
			add_relation(subject, routing, ((AlterSeqStmt *) statement)->sequence);
			break;
		case T_AlterTableStmt:
			add_relation(subject, routing, ((AlterTableStmt *) statement)->relation);
			break;
		case T_IndexStmt:
			add_relation(subject, routing, ((IndexStmt *) statement)->relation);
			break;
		case T_CreateTrigStmt:
			add_relation(subject, routing, ((CreateTrigStmt *) statement)->relation);
			break;
		case T_CreatePolicyStmt:
			add_relation(subject, routing, ((CreatePolicyStmt *) statement)->table);
			break;
		case T_AlterPolicyStmt:
			add_relation(subject, routing, ((AlterPolicyStmt *) statement)->table);
			break;
		case T_RuleStmt:
			add_relation(subject, routing, ((RuleStmt *) statement)->relation);
			break;
		case T_CreateStatsStmt:
			add_objects(subject, routing, statement, OBJECT_TABLE, ((CreateStatsStmt *) statement)->relations);
			break;
		case T_TruncateStmt:
			add_objects(subject, routing, statement, OBJECT_TABLE, ((TruncateStmt *) statement)->relations);
			break;
		case T_LockStmt:
			add_objects(subject, routing, statement, OBJECT_TABLE, ((LockStmt *) statement)->relations);
			break;
		default:
			break;
	}
}

/* RENAME, SET SCHEMA, DEPENDS ON: a relation, or another object. */
static void
add_relation_or_object(TesseraSubject *subject, const TesseraRouting *routing, Node *statement, ObjectType type, RangeVar *relation, Node *object)
{
	if (relation)
		add_relation(subject, routing, relation);
	else if (object)
		add_object(subject, routing, statement, type, object);
}

static void
describe_other_statement(TesseraSubject *subject, const TesseraRouting *routing, Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_RenameStmt:
			add_relation_or_object(subject, routing, statement, ((RenameStmt *) statement)->renameType, ((RenameStmt *) statement)->relation,
								   ((RenameStmt *) statement)->object);
			break;
		case T_AlterObjectSchemaStmt:
			add_relation_or_object(subject, routing, statement, ((AlterObjectSchemaStmt *) statement)->objectType,
								   ((AlterObjectSchemaStmt *) statement)->relation, ((AlterObjectSchemaStmt *) statement)->object);
			break;
		case T_AlterObjectDependsStmt:
			add_relation_or_object(subject, routing, statement, ((AlterObjectDependsStmt *) statement)->objectType,
								   ((AlterObjectDependsStmt *) statement)->relation, ((AlterObjectDependsStmt *) statement)->object);
			break;
		case T_AlterOwnerStmt:
			add_relation_or_object(subject, routing, statement, ((AlterOwnerStmt *) statement)->objectType, ((AlterOwnerStmt *) statement)->relation,
								   ((AlterOwnerStmt *) statement)->object);
			break;
		case T_DropStmt:
			add_objects(subject, routing, statement, ((DropStmt *) statement)->removeType, ((DropStmt *) statement)->objects);
			break;
		case T_CommentStmt:
			add_object(subject, routing, statement, ((CommentStmt *) statement)->objtype, ((CommentStmt *) statement)->object);
			break;
		case T_SecLabelStmt:
			add_object(subject, routing, statement, ((SecLabelStmt *) statement)->objtype, ((SecLabelStmt *) statement)->object);
			break;
		case T_GrantStmt:
			if (((GrantStmt *) statement)->targtype == ACL_TARGET_OBJECT)
				add_objects(subject, routing, statement, ((GrantStmt *) statement)->objtype, ((GrantStmt *) statement)->objects);
			break;
		case T_DefineStmt:
			add_names(subject, statement, ((DefineStmt *) statement)->defnames);
			break;
		case T_CreateFunctionStmt:
			add_names(subject, statement, ((CreateFunctionStmt *) statement)->funcname);
			break;
		case T_CreateDomainStmt:
			add_names(subject, statement, ((CreateDomainStmt *) statement)->domainname);
			break;
		case T_AlterDomainStmt:
			add_names(subject, statement, ((AlterDomainStmt *) statement)->typeName);
			break;
		case T_CreateEnumStmt:
			add_names(subject, statement, ((CreateEnumStmt *) statement)->typeName);
			break;
		case T_AlterEnumStmt:
			add_names(subject, statement, ((AlterEnumStmt *) statement)->typeName);
			break;
		case T_CreateRangeStmt:
			add_names(subject, statement, ((CreateRangeStmt *) statement)->typeName);
			break;
		case T_CreateExtensionStmt:
			add_extension(subject, ((CreateExtensionStmt *) statement)->extname);
			break;
		case T_AlterExtensionStmt:
			add_extension(subject, ((AlterExtensionStmt *) statement)->extname);
			break;
		case T_AlterExtensionContentsStmt:
			add_extension(subject, ((AlterExtensionContentsStmt *) statement)->extname);
			break;
		default:
			break;
	}
}

void
tessera_subject(Node *statement, const TesseraRouting *routing, TesseraSubject *subject)
{
	describe_relation_statement(subject, routing, statement);
	describe_other_statement(subject, routing, statement);
	if (subject->keys == NIL && subject->local == NULL)
		add_key(subject, CreateCommandName(statement));
}
