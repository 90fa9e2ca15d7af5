/*
 * authority.c
 *	  What a call to the config node begins with; see authority.h.
 */
#include "postgres.h"

#include "fmgr.h"

#include "common/errors.h"
#include "common/text.h"
#include "config/authority.h"
#include "session/internal_connection.h"
#include "transaction/background.h"

PG_FUNCTION_INFO_V1(tessera_internal_require_config);

const TesseraRouting *
tessera_config_routing(int64 term)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL || !routing->is_config)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this node is not the config node")));
	tessera_require_metadata(routing);
	term = Max(term, tessera_internal_caller_term());
	if (term > routing->term)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("this config node is of term " INT64_FORMAT ", but the caller has seen term " INT64_FORMAT, routing->term, term),
				 errdetail("Another server was promoted in its place.")));
	return routing;
}

int
tessera_config_duty(void)
{
	const TesseraRouting *routing;
	int			answer;

	tessera_background_begin();
	routing = tessera_routing();
	answer = routing == NULL || !routing->is_config ? -1 : routing->metadata_unknown || routing->replaced ? 0 : 1;
	tessera_background_commit();
	return answer;
}

/* internal_require_config(term int8) */
Datum
tessera_internal_require_config(PG_FUNCTION_ARGS)
{
	(void) tessera_config_routing(PG_GETARG_INT64(0));
	PG_RETURN_VOID();
}

const TesseraGroup *
tessera_config_group(const TesseraRouting *routing, const pg_uuid_t *group_id, const pg_uuid_t *epoch)
{
	const TesseraGroup *group = tessera_routing_group_by_id(routing, group_id);

	if (group == NULL || (epoch != NULL && memcmp(&group->epoch, epoch, sizeof(pg_uuid_t)) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("table group %s was changed meanwhile", tessera_uuid_text(group_id)),
				 errhint("Try again.")));
	return group;
}

TesseraBound *
tessera_chunk_hint(const TesseraRouting *routing, const TesseraGroup *group, TesseraKeySpace *ks, const TesseraKeyBound *position)
{
	TesseraChunk chunk;

	if (position->elements[0].kind == TESSERA_MAXKEY)
		return NULL;
	tessera_routing_chunk(routing, group, tessera_routing_find_chunk(routing, group, position), &chunk);
	return tessera_key_to_bound(ks, &chunk.min);
}
