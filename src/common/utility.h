/*
 * utility.h
 *	  A utility statement on its way through the ProcessUtility hook, for the modules that take some of them over.
 */
#ifndef TESSERA_UTILITY_H
#define TESSERA_UTILITY_H

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

/* The statement's own text, palloc'd: without what stands before and behind it. */
extern char *tessera_utility_text(TesseraUtility *utility);

/*
 * Sets, in the caller's GUC nest level, what the lexer must go by for that text to be the statement again: within one message all is parsed before the first of it runs,
 * so a SET in it comes too late for this node's parser, but not for another's. ERROR 0A000 if there is no such setting. The statement must be as it was parsed: nothing
 * has been written into its tree since.
 */
extern void tessera_utility_set_lexer(const TesseraUtility *utility, const char *text);

#endif							/* TESSERA_UTILITY_H */
