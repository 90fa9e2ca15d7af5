/*
 * statement_names.c
 *	  The names that a statement locks on the config node where it names no relation: roles, default privileges, schemas, casts, user mappings and the
 *	  like, and what does not exist.
 *
 * A name says of what kind it is, so a role and a schema of one name do not meet. None stands for a whole class of objects: whoever prepares a
 * statement keeps its names, and must not hold up what others do with other objects. CURRENT_USER and the like are the role that they mean.
 *
 * Nothing is looked up but these roles, and nothing is locked here. Memory: lists and names in the current context.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "parser/parse_type.h"
#include "tcop/utility.h"
#include "utils/builtins.h"

#include "common/text.h"
#include "ddl/ddl.h"

/* As quote_identifier writes no name, it is none of a schema. */
#define ANY_SCHEMA "every schema"

static const char *
role_name(const RoleSpec *role)
{
	switch (role->roletype)
	{
		case ROLESPEC_CURRENT_ROLE:
		case ROLESPEC_CURRENT_USER:
			return GetUserNameFromId(GetUserId(), false);
		case ROLESPEC_SESSION_USER:
			return GetUserNameFromId(GetSessionUserId(), false);
		case ROLESPEC_PUBLIC:
			return "public";	/* no role can have this name */
		case ROLESPEC_CSTRING:
			break;
	}
	return role->rolename;
}

static List *
role_key(List *keys, const char *role)
{
	return lappend(keys, psprintf("role %s", tessera_quote(role)));
}

static List *
role_keys(List *keys, List *roles)
{
	ListCell   *cell;

	foreach(cell, roles)
		keys = role_key(keys, role_name(lfirst_node(RoleSpec, cell)));
	return keys;
}

/* The role, and its members or the roles that it is to be a member of. */
static List *
role_and_members(const char *role, List *options)
{
	List	   *keys = role_key(NIL, role);
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, "rolemembers") == 0 || strcmp(option->defname, "adminmembers") == 0 ||
			strcmp(option->defname, "addroleto") == 0)
			keys = role_keys(keys, (List *) option->arg);
	}
	return keys;
}

static List *
granted_roles(const GrantRoleStmt *statement)
{
	List	   *keys = role_keys(NIL, statement->grantee_roles);
	ListCell   *cell;

	foreach(cell, statement->granted_roles)
		keys = role_key(keys, lfirst_node(AccessPriv, cell)->priv_name);
	return keys;
}

/* One name for each row of pg_default_acl but its type of objects: a role, and a schema or none. */
static List *
default_privileges(const AlterDefaultPrivilegesStmt *statement)
{
	List	   *roles = NIL;
	List	   *schemas = NIL;
	List	   *keys = NIL;
	ListCell   *cell;
	ListCell   *other;

	foreach(cell, statement->options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, "roles") == 0)
			foreach(other, (List *) option->arg)
				roles = lappend(roles, unconstify(char *, role_name(lfirst_node(RoleSpec, other))));
		else if (strcmp(option->defname, "schemas") == 0)
			foreach(other, (List *) option->arg)
				schemas = lappend(schemas, unconstify(char *, tessera_quote(strVal(lfirst(other)))));
	}
	if (roles == NIL)
		roles = list_make1(GetUserNameFromId(GetUserId(), false));
	if (schemas == NIL)
		schemas = list_make1(ANY_SCHEMA);
	foreach(cell, roles)
		foreach(other, schemas)
			keys = lappend(keys, psprintf("default privileges of %s in %s", tessera_quote(lfirst(cell)), (char *) lfirst(other)));
	return keys;
}

static List *
user_mapping(const RoleSpec *user, const char *server)
{
	return list_make1(psprintf("user mapping of %s on %s", tessera_quote(role_name(user)), tessera_quote(server)));
}

static List *
schema_key(List *keys, const char *schema)
{
	return lappend(keys, psprintf("schema %s", tessera_quote(schema)));
}

/* A name of the kind that the command says. */
static List *
command_key(List *keys, Node *statement, const char *name)
{
	return lappend(keys, psprintf("%s %s", CreateCommandName(statement), name));
}

/* The names of an object as the grammar has them: of strings, types, and lists of both; "" if there are none. */
static char *
spelled(Node *object)
{
	StringInfoData text;
	ListCell   *cell;

	initStringInfo(&text);
	if (object == NULL)
		return text.data;
	if (IsA(object, String))
		appendStringInfoString(&text, tessera_quote(strVal(object)));
	else if (IsA(object, TypeName))
		appendStringInfoString(&text, TypeNameToString((TypeName *) object));
	else if (IsA(object, ObjectWithArgs))
		appendStringInfoString(&text, NameListToString(((ObjectWithArgs *) object)->objname));
	else if (IsA(object, RangeVar))
		appendStringInfo(&text, "%s.%s", ((RangeVar *) object)->schemaname ? ((RangeVar *) object)->schemaname : "", ((RangeVar *) object)->relname);
	else if (IsA(object, List))
		foreach(cell, (List *) object)
			appendStringInfo(&text, "%s%s", text.len ? "." : "", spelled(lfirst(cell)));
	return text.data;
}

static List *
object_keys(Node *statement, List *objects)
{
	List	   *keys = NIL;
	ListCell   *cell;

	foreach(cell, objects)
		keys = command_key(keys, statement, spelled(lfirst(cell)));
	return keys;
}

/* An object of COMMENT and SECURITY LABEL. */
static List *
described_object(Node *statement, ObjectType type, Node *object)
{
	if (type == OBJECT_ROLE)
		return role_key(NIL, strVal(object));
	return object_keys(statement, list_make1(object));
}

/* RENAME, SET SCHEMA and ALTER ... IF EXISTS of a relation that does not exist, or of another object. */
static List *
relation_or_object(Node *statement, RangeVar *relation, Node *object)
{
	return object_keys(statement, list_make1(relation != NULL ? (Node *) relation : object));
}

static List *
renamed(const RenameStmt *statement)
{
	if (statement->renameType == OBJECT_ROLE)
		return role_key(role_key(NIL, statement->subname), statement->newname);
	if (statement->renameType == OBJECT_SCHEMA)
		return schema_key(schema_key(NIL, statement->subname), statement->newname);
	return relation_or_object((Node *) statement, statement->relation, statement->object);
}

static List *
role_statement(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateRoleStmt:
			return role_and_members(((CreateRoleStmt *) statement)->role, ((CreateRoleStmt *) statement)->options);
		case T_AlterRoleStmt:
			return role_and_members(role_name(((AlterRoleStmt *) statement)->role), ((AlterRoleStmt *) statement)->options);
		case T_AlterRoleSetStmt:
			if (((AlterRoleSetStmt *) statement)->role == NULL)
				return list_make1("all roles");
			return role_key(NIL, role_name(((AlterRoleSetStmt *) statement)->role));
		case T_DropRoleStmt:
			return role_keys(NIL, ((DropRoleStmt *) statement)->roles);
		case T_GrantRoleStmt:
			return granted_roles((GrantRoleStmt *) statement);
		case T_DropOwnedStmt:
			return role_keys(NIL, ((DropOwnedStmt *) statement)->roles);
		case T_ReassignOwnedStmt:
			return role_keys(role_keys(NIL, ((ReassignOwnedStmt *) statement)->roles), list_make1(((ReassignOwnedStmt *) statement)->newrole));
		case T_AlterDefaultPrivilegesStmt:
			return default_privileges((AlterDefaultPrivilegesStmt *) statement);
		case T_CreateUserMappingStmt:
			return user_mapping(((CreateUserMappingStmt *) statement)->user, ((CreateUserMappingStmt *) statement)->servername);
		case T_AlterUserMappingStmt:
			return user_mapping(((AlterUserMappingStmt *) statement)->user, ((AlterUserMappingStmt *) statement)->servername);
		case T_DropUserMappingStmt:
			return user_mapping(((DropUserMappingStmt *) statement)->user, ((DropUserMappingStmt *) statement)->servername);
		default:
			return NIL;
	}
}

/* Statements about objects of many kinds. */
static List *
general_statement(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_RenameStmt:
			return renamed((RenameStmt *) statement);
		case T_AlterObjectSchemaStmt:
			return relation_or_object(statement, ((AlterObjectSchemaStmt *) statement)->relation, ((AlterObjectSchemaStmt *) statement)->object);
		case T_AlterObjectDependsStmt:
			return relation_or_object(statement, ((AlterObjectDependsStmt *) statement)->relation, ((AlterObjectDependsStmt *) statement)->object);
		case T_AlterOwnerStmt:
			return relation_or_object(statement, ((AlterOwnerStmt *) statement)->relation, ((AlterOwnerStmt *) statement)->object);
		case T_AlterTableStmt:
			return relation_or_object(statement, ((AlterTableStmt *) statement)->relation, NULL);
		case T_AlterSeqStmt:
			return relation_or_object(statement, ((AlterSeqStmt *) statement)->sequence, NULL);
		case T_DropStmt:
			return object_keys(statement, ((DropStmt *) statement)->objects);
		case T_CommentStmt:
			return described_object(statement, ((CommentStmt *) statement)->objtype, ((CommentStmt *) statement)->object);
		case T_SecLabelStmt:
			return described_object(statement, ((SecLabelStmt *) statement)->objtype, ((SecLabelStmt *) statement)->object);
		case T_GrantStmt:
			return object_keys(statement, ((GrantStmt *) statement)->objects);	/* ON ALL ... IN SCHEMA: schemas */
		default:
			return NIL;
	}
}

/* Statements about one object of one kind. */
static List *
special_statement(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateSchemaStmt:
			return schema_key(NIL, ((CreateSchemaStmt *) statement)->schemaname ? ((CreateSchemaStmt *) statement)->schemaname :
							  role_name(((CreateSchemaStmt *) statement)->authrole));
		case T_AlterFunctionStmt:
			return command_key(NIL, statement, spelled((Node *) ((AlterFunctionStmt *) statement)->func));
		case T_AlterOperatorStmt:
			return command_key(NIL, statement, spelled((Node *) ((AlterOperatorStmt *) statement)->opername));
		case T_AlterTypeStmt:
			return command_key(NIL, statement, spelled((Node *) ((AlterTypeStmt *) statement)->typeName));
		case T_AlterCollationStmt:
			return command_key(NIL, statement, spelled((Node *) ((AlterCollationStmt *) statement)->collname));
		case T_AlterStatsStmt:
			return command_key(NIL, statement, spelled((Node *) ((AlterStatsStmt *) statement)->defnames));
		case T_AlterTSConfigurationStmt:
			return command_key(NIL, statement, spelled((Node *) ((AlterTSConfigurationStmt *) statement)->cfgname));
		case T_AlterTSDictionaryStmt:
			return command_key(NIL, statement, spelled((Node *) ((AlterTSDictionaryStmt *) statement)->dictname));
		case T_CreateOpClassStmt:
			return command_key(NIL, statement, spelled((Node *) ((CreateOpClassStmt *) statement)->opclassname));
		case T_CreateOpFamilyStmt:
			return command_key(NIL, statement, spelled((Node *) ((CreateOpFamilyStmt *) statement)->opfamilyname));
		case T_AlterOpFamilyStmt:
			return command_key(NIL, statement, spelled((Node *) ((AlterOpFamilyStmt *) statement)->opfamilyname));
		case T_CreateConversionStmt:
			return command_key(NIL, statement, spelled((Node *) ((CreateConversionStmt *) statement)->conversion_name));
		case T_CreateCastStmt:
			return command_key(NIL, statement, psprintf("%s.%s", TypeNameToString(((CreateCastStmt *) statement)->sourcetype),
														TypeNameToString(((CreateCastStmt *) statement)->targettype)));
		case T_CreateTransformStmt:
			return command_key(NIL, statement, psprintf("%s.%s", TypeNameToString(((CreateTransformStmt *) statement)->type_name),
														((CreateTransformStmt *) statement)->lang));
		case T_CreatePLangStmt:
			return command_key(NIL, statement, ((CreatePLangStmt *) statement)->plname);
		case T_CreateAmStmt:
			return command_key(NIL, statement, ((CreateAmStmt *) statement)->amname);
		case T_CreateEventTrigStmt:
			return command_key(NIL, statement, ((CreateEventTrigStmt *) statement)->trigname);
		case T_AlterEventTrigStmt:
			return command_key(NIL, statement, ((AlterEventTrigStmt *) statement)->trigname);
		case T_CreateFdwStmt:
			return command_key(NIL, statement, ((CreateFdwStmt *) statement)->fdwname);
		case T_AlterFdwStmt:
			return command_key(NIL, statement, ((AlterFdwStmt *) statement)->fdwname);
		case T_CreateForeignServerStmt:
			return command_key(NIL, statement, ((CreateForeignServerStmt *) statement)->servername);
		case T_AlterForeignServerStmt:
			return command_key(NIL, statement, ((AlterForeignServerStmt *) statement)->servername);
		case T_ImportForeignSchemaStmt:
			return command_key(NIL, statement, ((ImportForeignSchemaStmt *) statement)->local_schema);
		default:
			return NIL;
	}
}

List *
tessera_statement_names(Node *statement)
{
	List	   *keys = role_statement(statement);

	if (keys == NIL)
		keys = general_statement(statement);
	if (keys == NIL)
		keys = special_statement(statement);

	/* ALTER DATABASE ... SET: of this database; statements that fail as what they make has no schema */
	return keys != NIL ? keys : list_make1(unconstify(char *, CreateCommandName(statement)));
}
