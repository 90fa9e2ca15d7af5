/*
 * check_as.c
 *	  A statement together with the role by whose rights its tables are read; see check_as.h.
 *
 * Form: a mark, which is a comment at the very beginning of the text, then SELECT of one string literal, which is the statement itself. So both are
 * parts of the text: of the statement's identity wherever statements are cached, at either end; and core's plan cache hands them over again when it
 * analyses the statement anew. After core has analysed that SELECT, the Query of the statement takes its place; the role becomes checkAsUser of all
 * relations that it names, before it is rewritten, as that of a view's relations does when the view's rule is loaded: row security policies are
 * chosen by it.
 *
 * The statement is analysed here, because a view's definition may name what lies in schemas that its reader may not use. So names are looked up as
 * the bootstrap superuser, along the search path of the current user. Nothing of a user's may run meanwhile: analysis calls input functions of
 * literals only, so there must be no literal of a type that users can make (the router sends those as parameters, whose values are read by the
 * current user).
 *
 * What users write must not be taken for such a text. It counts only if this backend has got the very text (by its address) as a Parse or Query
 * message on an internal connection, and no statement runs yet; or if a local part is about to have it analysed; and only as a SELECT. SELECTs on
 * internal connections are texts of the router's own deparser, which begin with no comment; what is shipped as users wrote it are utility statements.
 * Functions and triggers that run below have texts of their own.
 *
 * The role's number at the router is part of the mark, so that a role made anew by a former name does not meet statements of the former one.
 *
 * Memory: nothing is kept.
 */
#include "postgres.h"

#include <ctype.h>

#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "parser/analyze.h"
#include "parser/parse_node.h"
#include "parser/parse_type.h"
#include "parser/parser.h"
#include "rewrite/rewriteDefine.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "common/acting_as.h"
#include "common/text.h"
#include "session/check_as.h"
#include "session/internal_connection.h"

#define MARK "/*tessera as "
#define MARK_END "*/ "

static const char *expected = NULL;
static post_parse_analyze_hook_type previous_hook = NULL;

static bool
is_plain(unsigned char c)
{
	return c == '_' || (c < 128 && isalnum(c));
}

char *
tessera_check_as(Oid role, const char *sql)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, MARK "%u ", role);
	/* no name may end the comment */
	for (const char *c = GetUserNameFromId(role, false); *c; c++)
	{
		if (is_plain((unsigned char) *c))
			appendStringInfoChar(&text, *c);
		else
			appendStringInfo(&text, "%%%02x", (unsigned char) *c);
	}
	appendStringInfo(&text, MARK_END "SELECT %s", quote_literal_cstr(sql));
	return text.data;
}

const char *
tessera_check_as_expect(const char *sql)
{
	const char *before = expected;

	expected = sql;
	return before;
}

_Noreturn static void
damaged(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("damaged statement of another node")));
}

static Oid
marked_role(const char *sql)
{
	const char *c = strchr(sql + strlen(MARK), ' ');
	char		name[NAMEDATALEN];
	int			length = 0;

	for (c = c ? c + 1 : ""; (*c == '%' || is_plain((unsigned char) *c)) && length < NAMEDATALEN - 1; c++)
	{
		unsigned int byte = (unsigned char) *c;

		if (*c == '%')
		{
			if (sscanf(c + 1, "%2x", &byte) != 1)
				damaged();
			c += 2;
		}
		name[length++] = (char) byte;
	}
	name[length] = '\0';
	if (length == 0 || strncmp(c, MARK_END, strlen(MARK_END)) != 0)
		damaged();
	return get_role_oid(name, false);
}

/* The statement that the literal says. */
static const char *
statement_of(const Query *query)
{
	Const	   *literal = list_length(query->targetList) == 1 ? (Const *) linitial_node(TargetEntry, query->targetList)->expr : NULL;

	if (literal == NULL || !IsA(literal, Const) || literal->constisnull || literal->consttype != TEXTOID || query->rtable != NIL)
		damaged();
	return TextDatumGetCString(literal->constvalue);
}

/* True if the statement has a literal of a type that users can make, whose input function may be their code. */
static bool
runs_user_code(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, TypeCast) && IsA(((TypeCast *) node)->arg, A_Const) && !((A_Const *) ((TypeCast *) node)->arg)->isnull &&
		typenameTypeId(NULL, ((TypeCast *) node)->typeName) >= FirstNormalObjectId)
		return true;
	return raw_expression_tree_walker(node, runs_user_code, context);
}

/* Analyses the statement inside the literal; its parameters are those of the text around it. */
static Query *
analyse_statement(const char *sql, const ParseState *around)
{
	List	   *raw = raw_parser(sql, RAW_PARSE_DEFAULT);
	ParseState *pstate = make_parsestate(NULL);
	Query	   *query;

	if (list_length(raw) != 1 || !IsA(linitial_node(RawStmt, raw)->stmt, SelectStmt) || runs_user_code(linitial_node(RawStmt, raw)->stmt, NULL))
		damaged();
	pstate->p_sourcetext = sql;
	pstate->p_queryEnv = around->p_queryEnv;
	pstate->p_paramref_hook = around->p_paramref_hook;
	pstate->p_coerce_param_hook = around->p_coerce_param_hook;
	pstate->p_ref_hook_state = around->p_ref_hook_state;
	query = transformTopLevelStmt(pstate, linitial_node(RawStmt, raw));
	free_parsestate(pstate);
	return query;
}

/*
 * Sets search_path, in the caller's nest level of settings, to the schemas that it means to the current user: for another user it would mean others.
 * "$user" always stands for the schema named as the user, so a schema called $user cannot be named there.
 */
static void
fix_search_path(void)
{
	StringInfoData path;
	ListCell   *cell;

	initStringInfo(&path);
	foreach(cell, fetch_search_path(true))
	{
		char	   *name = get_namespace_name(lfirst_oid(cell));

		if (name == NULL)
			continue;			/* dropped meanwhile */
		if (strcmp(name, "$user") == 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a view of another owner cannot be read while the schema \"$user\" is on the search path"),
					 errhint("Rename the schema, or set search_path without it.")));
		appendStringInfo(&path, "%s%s", path.len > 0 ? ", " : "", tessera_quote(name));
	}
	(void) set_config_option("search_path", path.data, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	pfree(path.data);
}

/* As the cluster, restricted besides: no code of users runs in an analysis without literals of their types (head of the file). */
static Query *
analyse_with_all_names(const char *sql, const ParseState *around)
{
	Query	   *volatile query;
	TesseraActing before;
	Oid			user;
	int			security;
	int			level = NewGUCNestLevel();

	/* an error leaves the search path to the abort of the (sub)transaction */

	fix_search_path();
	GetUserIdAndSecContext(&user, &security);
	tessera_act_as(&before, BOOTSTRAP_SUPERUSERID, security | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	PG_TRY();
	{
		query = analyse_statement(sql, around);
	}
	PG_FINALLY();
	{
		tessera_act_end(&before);
	}
	PG_END_TRY();
	AtEOXact_GUC(false, level);
	return query;
}

static void
take_statement(Query *query, const ParseState *pstate)
{
	Oid			role = marked_role(pstate->p_sourcetext);
	Query	   *statement = analyse_with_all_names(statement_of(query), pstate);

	setRuleCheckAsUser((Node *) statement, role);
	statement->queryId = query->queryId;
	statement->stmt_location = query->stmt_location;
	statement->stmt_len = query->stmt_len;
	memcpy(query, statement, sizeof(Query));
}

bool
tessera_comes_from_router(const char *sql)
{
	return sql == expected || tessera_received(sql);
}

static void
analysed(ParseState *pstate, Query *query, JumbleState *jumble)
{
	const char *sql = pstate->p_sourcetext;

	if (sql != NULL && query->commandType == CMD_SELECT && tessera_comes_from_router(sql) && strncmp(sql, MARK, strlen(MARK)) == 0)
		take_statement(query, pstate);
	if (previous_hook)
		previous_hook(pstate, query, jumble);
}

void
tessera_check_as_init(void)
{
	previous_hook = post_parse_analyze_hook;
	post_parse_analyze_hook = analysed;
}
