/*
 * node_answers.c
 *	  Whether the other nodes answer, for tessera.health.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "routing/routing.h"
#include "transaction/ask_nodes.h"

PG_FUNCTION_INFO_V1(tessera_node_answers);

#define ANSWER_MS 5000			/* that all of them have together */

/*
 * node_answers(): node_id, node, trouble (null: it has answered), took_ms, of all others. Nothing on a standby, for which nobody would take
 * it, nor in a database that is no node.
 */
Datum
tessera_node_answers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	const TesseraRouting *routing = RecoveryInProgress() ? NULL : tessera_routing();
	TesseraNodeReply *replies;
	int			n = 0;

	InitMaterializedSRF(fcinfo, 0);
	if (routing == NULL)
		return (Datum) 0;
	replies = tessera_ask_nodes(routing, NULL, ANSWER_MS, &n);
	for (int i = 0; i < n; i++)
	{
		Datum		values[4] = {Int32GetDatum(replies[i].node_id), NameGetDatum(&replies[i].name)};
		bool		nulls[4] = {false, false, replies[i].trouble == NULL, false};

		if (replies[i].trouble != NULL)
			values[2] = CStringGetTextDatum(replies[i].trouble);
		values[3] = Int32GetDatum(replies[i].took_ms);
		tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
	}
	return (Datum) 0;
}
