/*
 * temporary.c
 *	  DDL statements whose object would rest on something temporary, which only this session has.
 *
 * PostgreSQL allows it: a function with a parameter of a temporary table's row type lies in a lasting schema and goes with the table. Such functions,
 * domains and composite types stay on this node, and so does what is done to them later. Tables are every node's, so they cannot have columns of such
 * types, and no temporary table can be a child of one: other nodes would read it without that child.
 *
 * Memory: lists in the current context. Names are looked up without locks, as in statement_objects.c.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "parser/parse_func.h"
#include "parser/parse_type.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "ddl/ddl.h"

static bool is_temporary(Oid type);

static bool
has_temporary_column(Oid relid)
{
	Relation	relation = try_relation_open(relid, AccessShareLock);
	bool		result = false;

	if (relation == NULL)
		return false;
	for (int i = 0; i < RelationGetDescr(relation)->natts && !result; i++)
		result = !TupleDescAttr(RelationGetDescr(relation), i)->attisdropped && is_temporary(TupleDescAttr(RelationGetDescr(relation), i)->atttypid);
	relation_close(relation, AccessShareLock);
	return result;
}

/* True if the type, or a type that it is made of, lies in a temporary schema. */
static bool
is_temporary(Oid type)
{
	HeapTuple	tuple;
	Form_pg_type form;
	bool		result;

	if (!OidIsValid(type))
		return false;
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_type) GETSTRUCT(tuple);
	if (isAnyTempNamespace(form->typnamespace))
		result = true;
	else if (OidIsValid(form->typelem))
		result = is_temporary(form->typelem);
	else if (form->typtype == TYPTYPE_DOMAIN)
		result = is_temporary(form->typbasetype);
	else
		result = form->typtype == TYPTYPE_COMPOSITE && get_rel_relkind(form->typrelid) == RELKIND_COMPOSITE_TYPE &&
			has_temporary_column(form->typrelid);
	ReleaseSysCache(tuple);
	return result;
}

/* Type of table.column%TYPE. */
static Oid
type_of_column(List *names)
{
	Oid			relid;

	if (list_length(names) < 2)
		return InvalidOid;
	relid = RangeVarGetRelid(makeRangeVarFromNameList(list_truncate(list_copy(names), list_length(names) - 1)), NoLock, true);
	return OidIsValid(relid) ? get_atttype(relid, get_attnum(relid, strVal(llast(names)))) : InvalidOid;
}

static bool
names_temporary(TypeName *name)
{
	Type		type;
	bool		result;

	if (name == NULL || !IsA(name, TypeName))
		return false;
	if (name->pct_type)			/* the server says so, once, when it reads it */
		return is_temporary(type_of_column(name->names));
	if (OidIsValid(name->typeOid))
		return is_temporary(name->typeOid);
	type = LookupTypeName(NULL, name, NULL, true);
	if (type == NULL)
		return false;
	result = is_temporary(typeTypeId(type));
	ReleaseSysCache(type);
	return result;
}

static bool
column_is_temporary(Node *element)
{
	return element && IsA(element, ColumnDef) && names_temporary(((ColumnDef *) element)->typeName);
}

static bool
any_column_is_temporary(List *elements)
{
	ListCell   *cell;

	foreach(cell, elements)
		if (column_is_temporary(lfirst(cell)))
			return true;
	return false;
}

static bool
function_is_temporary(ObjectType type, ObjectWithArgs *name)
{
	Oid			function;
	HeapTuple	tuple;
	Form_pg_proc form;
	bool		result;

	if (type != OBJECT_FUNCTION && type != OBJECT_PROCEDURE && type != OBJECT_ROUTINE)
		return false;
	function = LookupFuncWithArgs(OBJECT_ROUTINE, name, true);
	tuple = OidIsValid(function) ? SearchSysCache1(PROCOID, ObjectIdGetDatum(function)) : NULL;
	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	result = is_temporary(form->prorettype);
	for (int i = 0; i < form->proargtypes.dim1 && !result; i++)
		result = is_temporary(form->proargtypes.values[i]);
	ReleaseSysCache(tuple);
	return result;
}

static bool
object_is_temporary(ObjectType type, Node *object)
{
	if (object == NULL)
		return false;
	if (IsA(object, ObjectWithArgs))
		return function_is_temporary(type, (ObjectWithArgs *) object);
	if (IsA(object, TypeName))
		return names_temporary((TypeName *) object);
	if (IsA(object, List) && (type == OBJECT_DOMAIN || type == OBJECT_TYPE))
		return names_temporary(makeTypeNameFromNameList((List *) object));
	return false;
}

static bool
any_object_is_temporary(ObjectType type, List *objects)
{
	ListCell   *cell;

	foreach(cell, objects)
		if (object_is_temporary(type, lfirst(cell)))
			return true;
	return false;
}

static bool
creates_temporary_function(CreateFunctionStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->parameters)
		if (names_temporary(lfirst_node(FunctionParameter, cell)->argType))
			return true;
	return names_temporary(statement->returnType);
}

bool
tessera_rests_on_temporary(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateFunctionStmt:
			return creates_temporary_function((CreateFunctionStmt *) statement);
		case T_CreateDomainStmt:
			return names_temporary(((CreateDomainStmt *) statement)->typeName);
		case T_CompositeTypeStmt:
			return any_column_is_temporary(((CompositeTypeStmt *) statement)->coldeflist);
		case T_AlterDomainStmt:
			return names_temporary(makeTypeNameFromNameList(((AlterDomainStmt *) statement)->typeName));
		case T_AlterFunctionStmt:
			return object_is_temporary(((AlterFunctionStmt *) statement)->objtype, (Node *) ((AlterFunctionStmt *) statement)->func);
		case T_DropStmt:
			return any_object_is_temporary(((DropStmt *) statement)->removeType, ((DropStmt *) statement)->objects);
		case T_CommentStmt:
			return object_is_temporary(((CommentStmt *) statement)->objtype, ((CommentStmt *) statement)->object);
		case T_GrantStmt:
			return ((GrantStmt *) statement)->targtype == ACL_TARGET_OBJECT &&
				any_object_is_temporary(((GrantStmt *) statement)->objtype, ((GrantStmt *) statement)->objects);
		case T_RenameStmt:
			return object_is_temporary(((RenameStmt *) statement)->renameType, ((RenameStmt *) statement)->object);
		case T_AlterOwnerStmt:
			return object_is_temporary(((AlterOwnerStmt *) statement)->objectType, ((AlterOwnerStmt *) statement)->object);
		case T_AlterObjectSchemaStmt:
			return object_is_temporary(((AlterObjectSchemaStmt *) statement)->objectType, ((AlterObjectSchemaStmt *) statement)->object);
		default:
			return false;
	}
}

static void
refuse_parents(List *parents, const TesseraRouting *routing)
{
	ListCell   *cell;

	foreach(cell, parents)
	{
		Oid			parent = RangeVarGetRelid(lfirst_node(RangeVar, cell), NoLock, true);

		if (OidIsValid(parent) && OidIsValid(tessera_cluster_root(routing, parent)))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a temporary table cannot be a child of table \"%s\" of the cluster", get_rel_name(parent)),
					 errhint("Other nodes would read the table without it. Use CREATE TEMPORARY TABLE ... (LIKE ...).")));
	}
}

void
tessera_refuse_temporary_child(Node *statement, const TesseraRouting *routing)
{
	ListCell   *cell;

	if (IsA(statement, CreateStmt))
		refuse_parents(((CreateStmt *) statement)->inhRelations, routing);
	if (!IsA(statement, AlterTableStmt))
		return;
	foreach(cell, ((AlterTableStmt *) statement)->cmds)
		if (lfirst_node(AlterTableCmd, cell)->subtype == AT_AddInherit)
			refuse_parents(list_make1(lfirst_node(AlterTableCmd, cell)->def), routing);
}

_Noreturn static void
refuse_column(const char *table)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("table \"%s\" of the cluster cannot have a column of a temporary type", table),
			 errhint("Make the type a lasting one, or the table temporary.")));
}

void
tessera_refuse_temporary_columns(Node *statement)
{
	ListCell   *cell;

	if (IsA(statement, CreateStmt) && any_column_is_temporary(((CreateStmt *) statement)->tableElts))
		refuse_column(((CreateStmt *) statement)->relation->relname);
	if (!IsA(statement, AlterTableStmt))
		return;
	foreach(cell, ((AlterTableStmt *) statement)->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, cell);

		if ((command->subtype == AT_AddColumn || command->subtype == AT_AlterColumnType) && column_is_temporary(command->def))
			refuse_column(((AlterTableStmt *) statement)->relation->relname);
	}
}
