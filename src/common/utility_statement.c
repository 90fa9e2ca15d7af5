/*
 * utility_statement.c
 *	  A utility statement on its way through the ProcessUtility hook; see utility_statement.h.
 */
#include "postgres.h"

#include "nodes/nodes.h"
#include "parser/analyze.h"
#include "parser/parser.h"
#include "parser/scansup.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "common/utility_statement.h"

char *
tessera_utility_text(TesseraUtility *utility)
{
	const char *start = utility->text;
	int			length = utility->statement->stmt_len;

	if (utility->statement->stmt_location > 0)
		start += utility->statement->stmt_location;
	if (length <= 0)
		length = strlen(start);
	while (length > 0 && scanner_isspace(*start))
		start++, length--;
	while (length > 0 && (scanner_isspace(start[length - 1]) || start[length - 1] == ';'))
		length--;
	return pnstrdup(start, length);
}

/* ---- what a text means ---- */

/* The raw statement that the text is with that setting; NULL if it is none. */
static Node *
parse_with(const char *text, bool conforming)
{
	MemoryContext context = CurrentMemoryContext;
	bool		before_conforming = standard_conforming_strings;
	bool		before_warning = escape_string_warning;
	int			before_quote = backslash_quote;
	List	   *volatile statements = NIL;

	PG_TRY();
	{
		standard_conforming_strings = conforming;
		escape_string_warning = false;
		backslash_quote = BACKSLASH_QUOTE_ON;	/* \' was let through when the statement was parsed */
		statements = raw_parser(text, RAW_PARSE_DEFAULT);
	}
	PG_CATCH();
	{
		/* The parser holds nothing but memory. */
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	standard_conforming_strings = before_conforming;
	escape_string_warning = before_warning;
	backslash_quote = before_quote;
	return list_length(statements) == 1 ? linitial_node(RawStmt, statements)->stmt : NULL;
}

static bool
means_statement(const char *text, bool conforming, Node *statement)
{
	Node	   *parsed = parse_with(text, conforming);

	if (parsed != NULL && IsA(parsed, CreateTableAsStmt))	/* the only one sent as a text that the analysis changes: its query */
	{
		RawStmt    *raw = makeNode(RawStmt);

		raw->stmt = parsed;
		parsed = parse_analyze_fixedparams(raw, text, NULL, 0, NULL)->utilityStmt;
	}
	return parsed != NULL && equal(parsed, statement);
}

static bool
means_the_same(const char *text)
{
	Node	   *one = parse_with(text, true);
	Node	   *other = parse_with(text, false);

	return one != NULL && other != NULL && equal(one, other);
}

static void
set_here(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

void
tessera_utility_set_lexer(const TesseraUtility *utility, const char *text)
{
	Node	   *statement = utility->statement->utilityStmt;
	bool		conforming = standard_conforming_strings;

	/* Without a backslash and U&'...' there is one meaning. */
	if (strpbrk(text, "\\&") == NULL || means_the_same(text))
		return;
	if (!means_statement(text, conforming, statement))
	{
		conforming = !conforming;
		if (!means_statement(text, conforming, statement))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("other nodes may parse this statement differently than this node did"),
					 errdetail("It has a backslash in a string, and standard_conforming_strings may have changed since it was parsed."),
					 errhint("Send SET standard_conforming_strings and the statement as separate messages, or write the string as E'...'.")));
	}
	set_here("standard_conforming_strings", conforming ? "on" : "off");
	set_here("backslash_quote", "on");
}
