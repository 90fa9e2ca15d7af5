/*
 * cross_table_code.c
 *	  Finds the code of a table that may reach rows of other tables. See cross_table_code.h.
 *
 * Triggers, policies and checks run where the row is stored. A function that reads another table works as long as all rows lie on one shard, and
 * fails once a range has moved. So those that may do it are named when a table is sharded and when its rows move.
 *
 * Nothing is kept, no lock is held; what is not there any more when it is looked up is left out.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/indexing.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "lib/stringinfo.h"
#include "nodes/nodeFuncs.h"
#include "parser/scanner.h"
#include "rewrite/rowsecurity.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "catalog/cross_table_code.h"
#include "catalog/relation.h"
#include "common/text.h"
#include "common/version_compat.h"

#define MAX_DEPTH 64

static bool name_reaches(const char *name);


/* Bodies of PL/pgSQL functions */

/* Words with which a statement or an expression of PL/pgSQL begins to read or write tables, or does what cannot be seen here. */
static const char *const statements[] = {
	"select", "insert", "update", "delete", "merge", "perform", "execute", "truncate", "copy", "call", "table", "values", "create", "alter", "drop",
	"lock", "refresh", "do", NULL
};

static bool
is_statement(const char *word)
{
	for (int i = 0; statements[i] != NULL; i++)
		if (pg_strcasecmp(word, statements[i]) == 0)
			return true;
	return false;
}

/* Functions whose arguments have a FROM of their own. */
static bool
takes_from(const char *word)
{
	return pg_strcasecmp(word, "extract") == 0 || pg_strcasecmp(word, "substring") == 0 || pg_strcasecmp(word, "trim") == 0 ||
		pg_strcasecmp(word, "overlay") == 0;
}

/* One pass over the tokens: SQL statements, a FROM (an expression may have one without SELECT), calls of functions that count. */
static bool
tokens_reach(core_yyscan_t scanner, TesseraWordTest test)
{
	core_YYSTYPE value;
	YYLTYPE		location;
	char		previous[NAMEDATALEN] = "";
	bool		from_allowed[MAX_DEPTH] = {false};
	int			depth = 0;
	bool		field = false;	/* behind a dot */
	int			token;

	while ((token = core_yylex(&value, &location, scanner)) != 0)
	{
		const char *word = "";

		if (token == TESSERA_TOKEN_IDENT || token == TESSERA_TOKEN_UIDENT)
			word = value.str;
		else if (token > TESSERA_TOKEN_LAST)
			word = value.keyword;

		if (token == '(')
		{
			if (previous[0] != '\0' && (name_reaches(previous) || (test != NULL && test(previous, true))))
				return true;
			if (++depth >= MAX_DEPTH)
				return true;
			from_allowed[depth] = takes_from(previous);
		}
		else if (token == ')')
			depth = Max(depth - 1, 0);
		else if (word[0] != '\0')
		{
			if (is_statement(word))
				return true;
			if (pg_strcasecmp(word, "from") == 0 && !from_allowed[depth] && pg_strcasecmp(previous, "distinct") != 0)
				return true;
			if (test != NULL && !field && test(word, false))
				return true;
		}
		field = token == '.';
		strlcpy(previous, word, sizeof(previous));
	}
	return false;
}

/* True if a PL/pgSQL body may reach a table, or a word of it meets the test (NULL: none). A body that cannot be read counts. */
static bool
body_reaches(const char *body, TesseraWordTest test)
{
	MemoryContext caller = CurrentMemoryContext;
	core_yy_extra_type extra;
	core_yyscan_t scanner = scanner_init(body, &extra, &ScanKeywords, ScanKeywordTokens);
	volatile bool result = true;

	extra.escape_string_warning = false;
	PG_TRY();
	{
		result = tokens_reach(scanner, test);
	}
	PG_CATCH();
	{
		int			category = ERRCODE_TO_CATEGORY(geterrcode());

		/*
		 * The lexer holds nothing. A body that it cannot read has not been checked when it was made, or not under this session's settings
		 * (backslash_quote): it may do anything.
		 */
		if (category == ERRCODE_OPERATOR_INTERVENTION || category == ERRCODE_INSUFFICIENT_RESOURCES)
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
	}
	PG_END_TRY();
	scanner_finish(scanner);
	return result;
}


/* Functions */

static bool
is_plpgsql(Oid language)
{
	char	   *name = get_language_name(language, true);

	return name != NULL && strcmp(name, "plpgsql") == 0;
}

/* depth 0: of a trigger or expression; 1: called by name in such a body, which is not looked into. */
static bool
tuple_reaches(HeapTuple tuple, bool look_inside, TesseraWordTest test)
{
	Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);
	bool		isnull;
	Datum		body;

	if (form->oid < FirstNormalObjectId || form->prolang == INTERNALlanguageId || form->prolang == ClanguageId)
		return false;
	if (!look_inside || !is_plpgsql(form->prolang))
		return true;
	body = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
	return isnull || body_reaches(TextDatumGetCString(body), test);
}

bool
tessera_function_reaches(Oid function, TesseraWordTest test)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = tuple_reaches(tuple, true, test);
	ReleaseSysCache(tuple);
	return result;
}

/* For a name in front of "(": true if a function of that name, in any schema, may reach a table. */
static bool
name_reaches(const char *name)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	bool		result = false;

	for (int i = 0; i < list->n_members && !result; i++)
		result = tuple_reaches(&list->members[i]->tuple, false, NULL);
	ReleaseSysCacheList(list);
	return result;
}

static bool
function_checker(Oid function, void *context)
{
	return tessera_function_reaches(function, NULL);
}

static bool
expression_reaches(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubLink) || IsA(node, Query) || IsA(node, SubPlan))
		return true;
	if (check_functions_in_node(node, function_checker, NULL))
		return true;
	return expression_tree_walker(node, expression_reaches, NULL);
}

bool
tessera_condition_reaches(const char *condition)
{
	return expression_reaches(stringToNode(condition), NULL);
}


/* What belongs to a table */

static void
add_triggers(Relation rel, List **found)
{
	TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];
		bool		reaches;

		/* that of a partition is its parent's */
		if (trigger->tgisinternal || trigger->tgisclone || trigger->tgenabled == TRIGGER_DISABLED)
			continue;
		reaches = tessera_function_reaches(trigger->tgfoid, NULL);
		if (!reaches && trigger->tgqual != NULL)
			reaches = tessera_condition_reaches(trigger->tgqual);
		if (reaches)
			*found = lappend(*found, psprintf("trigger \"%s\" (function %s)", trigger->tgname,
											  tessera_quote_qualified(get_namespace_name(get_func_namespace(trigger->tgfoid)),
																		 get_func_name(trigger->tgfoid))));
	}
}

static void
add_policies(Relation rel, List **found)
{
	ListCell   *cell;

	if (rel->rd_rsdesc == NULL)
		return;
	foreach(cell, rel->rd_rsdesc->policies)
	{
		RowSecurityPolicy *policy = lfirst(cell);

		if (expression_reaches((Node *) policy->qual, NULL) || expression_reaches((Node *) policy->with_check_qual, NULL))
			*found = lappend(*found, psprintf("policy \"%s\"", policy->policy_name));
	}
}

static void
add_checks(Relation rel, List **found)
{
	TupleConstr *constr = RelationGetDescr(rel)->constr;

	for (int i = 0; constr != NULL && i < constr->num_check; i++)
		if (expression_reaches(stringToNode(constr->check[i].ccbin), NULL))
			*found = lappend(*found, psprintf("check constraint \"%s\"", constr->check[i].ccname));
	for (int i = 0; constr != NULL && i < constr->num_defval; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(rel), constr->defval[i].adnum - 1);

		/* other defaults are computed where the statement was given */
		if (attribute->attgenerated != '\0' && expression_reaches(stringToNode(constr->defval[i].adbin), NULL))
			*found = lappend(*found, psprintf("generated column \"%s\"", NameStr(attribute->attname)));
	}
}

/* As it is stored: the server's own look-up simplifies it, and calls functions of constants for that, as who is looking. */
static Node *
stored_expression(Relation index, AttrNumber column)
{
	bool		null;
	Datum		stored = SysCacheGetAttr(INDEXRELID, index->rd_indextuple, column, &null);

	return null ? NULL : stringToNode(TextDatumGetCString(stored));
}

static void
add_indexes(Relation rel, List **found)
{
	ListCell   *cell;

	foreach(cell, RelationGetIndexList(rel))
	{
		Relation	index;

		if (get_rel_relispartition(lfirst_oid(cell)))
			continue;
		/* one that is being rebuilt or dropped is not waited for */
		if (!ConditionalLockRelationOid(lfirst_oid(cell), AccessShareLock))
			continue;
		index = index_open(lfirst_oid(cell), NoLock);
		if (expression_reaches(stored_expression(index, Anum_pg_index_indexprs), NULL) ||
			expression_reaches(stored_expression(index, Anum_pg_index_indpred), NULL))
			*found = lappend(*found, psprintf("index \"%s\"", RelationGetRelationName(index)));
		index_close(index, AccessShareLock);
	}
}

/* The type below a domain; InvalidOid if the type is none. */
static Oid
below_domain(Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Oid			result = InvalidOid;

	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	if (((Form_pg_type) GETSTRUCT(tuple))->typtype == TYPTYPE_DOMAIN)
		result = ((Form_pg_type) GETSTRUCT(tuple))->typbasetype;
	ReleaseSysCache(tuple);
	return result;
}

/* True if a check of the domain, or of a domain below it, may reach a table. */
static bool
domain_reaches(Oid type)
{
	Relation	constraints = table_open(ConstraintRelationId, AccessShareLock);
	bool		result = false;
	Oid			base;

	for (; !result && OidIsValid(base = below_domain(type)); type = base)
	{
		ScanKeyData condition;
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&condition, Anum_pg_constraint_contypid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(type));
		scan = systable_beginscan(constraints, ConstraintTypidIndexId, true, NULL, 1, &condition);
		while (!result && HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			bool		isnull;
			Datum		expression = heap_getattr(tuple, Anum_pg_constraint_conbin, RelationGetDescr(constraints), &isnull);

			result = !isnull && expression_reaches(stringToNode(TextDatumGetCString(expression)), NULL);
		}
		systable_endscan(scan);
	}
	table_close(constraints, AccessShareLock);
	return result;
}

static void
add_domains(Relation rel, List **found)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped && attribute->atttypid >= FirstNormalObjectId && domain_reaches(attribute->atttypid))
			*found = lappend(*found, psprintf("domain of column \"%s\"", NameStr(attribute->attname)));
	}
}

List *
tessera_cross_table_code(Relation rel)
{
	List	   *found = NIL;

	add_triggers(rel, &found);
	add_policies(rel, &found);
	add_indexes(rel, &found);
	/* a partition has columns and checks of its parent's; what it may have beside them is not worth the repetition */
	if (rel->rd_rel->relispartition)
		return found;
	add_checks(rel, &found);
	add_domains(rel, &found);
	return found;
}

List *
tessera_cross_table_code_of_tree(Relation rel)
{
	List	   *found = tessera_cross_table_code(rel);
	ListCell   *cell;
	ListCell   *code;

	foreach(cell, tessera_partitions(RelationGetRelid(rel), NoLock))
	{
		Relation	partition = try_relation_open(lfirst_oid(cell), AccessShareLock);

		if (partition == NULL)
			continue;
		foreach(code, tessera_cross_table_code(partition))
			found = lappend(found, psprintf("%s of partition \"%s\"", (char *) lfirst(code), RelationGetRelationName(partition)));
		relation_close(partition, AccessShareLock);
	}
	return found;
}

char *
tessera_cross_table_code_text(List *found)
{
	StringInfoData text;
	ListCell   *cell;

	if (found == NIL)
		return NULL;
	initStringInfo(&text);
	foreach(cell, found)
		appendStringInfo(&text, "%s%s", foreach_current_index(cell) > 0 ? "; " : "", (char *) lfirst(cell));
	return text.data;
}
