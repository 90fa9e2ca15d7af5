/*
 * node_answers.c
 *	  Whether the other nodes answer, for tessera.health.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/namespace.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "common/privilege.h"
#include "routing/routing.h"
#include "transaction/ask_nodes.h"

PG_FUNCTION_INFO_V1(tessera_node_answers);

#define ANSWER_MS 5000			/* that all of them have together */

/* Who has been given the view that shows it may call it, too. */
static bool
may_read_health(void)
{
	Oid			health = get_relname_relid("health", get_namespace_oid("tessera", false));

	return OidIsValid(health) && pg_class_aclcheck(health, GetUserId(), ACL_SELECT) == ACLCHECK_OK;
}

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

	if (!tessera_is_admin(GetUserId()) && !may_read_health())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for function %s", "node_answers"),
				 errhint("Members of tessera_admin may call it, and who may read tessera.health.")));
	InitMaterializedSRF(fcinfo, 0);
	if (routing == NULL)
		return (Datum) 0;
	replies = tessera_ask_nodes(routing, NULL, NULL, ANSWER_MS, &n);
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
