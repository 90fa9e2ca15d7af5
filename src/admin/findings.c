/*
 * findings.c
 *	  The list of findings; see findings.h. Nothing outlives the caller's memory context.
 */
#include "postgres.h"

#include "lib/stringinfo.h"

#include "admin/findings.h"

TesseraFinding *
tessera_finding(TesseraFindings *findings, int sqlstate, Oid relid, const char *problem, const char *detail, const char *hint, const char *statement)
{
	TesseraFinding *finding = palloc0(sizeof(TesseraFinding));

	finding->sqlstate = sqlstate;
	finding->relid = relid;
	finding->problem = problem;
	finding->detail = detail;
	finding->hint = hint;
	finding->statement = statement;
	findings->list = lappend(findings->list, finding);
	return finding;
}

char *
tessera_finding_text(const TesseraFinding *finding)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfoString(&text, finding->problem);
	if (finding->detail != NULL)
		appendStringInfo(&text, ". %s", finding->detail);
	if (finding->statement == NULL && finding->hint != NULL)
		appendStringInfo(&text, "%s %s", finding->detail == NULL ? "." : "", finding->hint);
	return text.data;
}

void
tessera_findings_raise(const TesseraFindings *findings, const char *report)
{
	ListCell   *cell;

	foreach(cell, findings->list)
	{
		const TesseraFinding *finding = lfirst(cell);
		const char *hint;

		if (finding->sqlstate == 0)
			continue;
		if (report == NULL)
			hint = finding->hint;
		else
			hint = finding->hint != NULL && finding->statement == NULL ? psprintf("%s\n%s", finding->hint, report) : report;
		ereport(ERROR,
				(errcode(finding->sqlstate),
				 errmsg("%s", finding->problem),
				 finding->detail != NULL ? errdetail("%s", finding->detail) : 0,
				 hint != NULL ? errhint("%s", hint) : 0));
	}
}
