/*
 * utility_statement.h
 *	  A utility statement on its way through the ProcessUtility hook, for the modules that take some of them over.
 */
#ifndef TESSERA_UTILITY_STATEMENT_H
#define TESSERA_UTILITY_STATEMENT_H

#include "postgres.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "tcop/utility.h"

/* Arguments of the hook, as they came. */
typedef struct TesseraUtility
{
	PlannedStmt *statement;
	const char *text;
	bool		read_only;
	ProcessUtilityContext context;
	ParamListInfo params;
	QueryEnvironment *environment;
	DestReceiver *receiver;
	QueryCompletion *completion;
} TesseraUtility;

/* Takes the statement over, or returns false: then it runs as without the extension. Called on member nodes only. */
typedef bool (*TesseraUtilityHandler) (TesseraUtility *utility);

/* The statement's own text, palloc'd, without the other statements of the same message. */
extern char *tessera_utility_text(TesseraUtility *utility);

/*
 * Sets, in the caller's GUC nest level, the lexer's settings (standard_conforming_strings) under which that text is parsed to the same statement
 * again. They can differ from the current ones: all statements of one message are parsed before the first of them runs (doc/design.md#ddl-text).
 * ERROR 0A000 if the text means the same under neither value. The statement's tree must be as it was parsed.
 */
extern void tessera_utility_set_lexer(const TesseraUtility *utility, const char *text);

#endif							/* TESSERA_UTILITY_STATEMENT_H */
