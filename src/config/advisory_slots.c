/*
 * advisory_slots.c
 *	  Which node keeps the advisory locks of which keys, when nodes come and go; see transaction/advisory.h.
 *
 * Runs on the config node, in the transaction of the membership change, last in it: what a slot's old home gives up is closed until that
 * transaction's end. The old home, the new one and the config node write the row in one distributed transaction, the others learn it by their
 * refresh. A crash leaves the slot with its old home, or with the new one.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "catalog/change.h"
#include "common/errors.h"
#include "common/spi_text.h"
#include "config/membership.h"
#include "control/calls.h"
#include "transaction/participant.h"

/* Asks a node to give up slots (text of an array); returns those it gave (same form), as the others' rows now say, too. Access must be open. */
static char *
give(const TesseraRouting *routing, int32 from, const char *slots, int32 to)
{
	const char *values[] = {slots, psprintf("%d", to)};
	char	   *given;

	tessera_call_advisory_give(tessera_writing(tessera_to_node(from)), slots, to, &given);
	values[0] = given;
	if (from != routing->self && strcmp(given, "{}") != 0)
		tessera_admin_exec("UPDATE tessera.advisory_home SET node_id = $2::int4, version = version + 1 WHERE slot = ANY ($1::int4[])", 2, values);
	tessera_catalog_changed();
	return given;
}

/* The same of a node that perhaps cannot be reached: it keeps its slots then, "{}". */
static char *
try_give(const TesseraRouting *routing, int32 from, const char *slots, int32 to)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *volatile given = "{}";

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		given = give(routing, from, slots, to);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (!tessera_error_is_unreachable(error->sqlerrcode))
			ReThrowError(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return given;
}

void
tessera_advisory_share(int32 node_id)
{
	static const char surplus_sql[] =
	"SELECT h.node_id, array_agg(h.slot ORDER BY h.slot) FROM (SELECT a.slot, a.node_id, row_number() OVER (PARTITION BY a.node_id ORDER BY a.slot) "
	"AS i FROM tessera.advisory_home a) h, (SELECT " CppAsString2(TESSERA_ADVISORY_SLOTS) " / greatest(count(*), 1) AS fair FROM tessera.node n"
	" WHERE n.is_shard OR n.node_id IN (SELECT a.node_id FROM tessera.advisory_home a)) f WHERE h.i > f.fair GROUP BY h.node_id ORDER BY h.node_id";
	const TesseraRouting *routing = tessera_routing_or_error();
	uint64		n = tessera_admin_exec(surplus_sql, 0, NULL);
	int32	   *from = tessera_admin_alloc(sizeof(int32) * Max(n, 1));
	const char **slots = tessera_admin_alloc(sizeof(char *) * Max(n, 1));

	for (uint64 i = 0; i < n; i++)
	{
		from[i] = atoi(tessera_admin_field(i, 1));
		slots[i] = tessera_admin_keep(tessera_admin_field(i, 2));
	}
	for (uint64 i = 0; i < n; i++)
		(void) try_give(routing, from[i], slots[i], node_id);
}

/* Says the new home what it is, in the same transaction. */
static void
tell_new_home(const TesseraRouting *routing, int32 node_id)
{
	const char *values[] = {NULL};

	if (node_id == routing->self)
		return;
	values[0] = tessera_admin_value("SELECT array_agg(a) FROM tessera.advisory_home a", 0, NULL);
	tessera_call_advisory_homes(tessera_writing(tessera_to_node(node_id)), values[0]);
}

bool
tessera_advisory_move_off(const TesseraRouting *routing, int32 node_id, bool force)
{
	const char *values[] = {NULL, NULL};
	const char *heir;
	const char *slots;
	const char *given;

	values[0] = psprintf("%d", node_id);
	slots = tessera_admin_value("SELECT array_agg(slot ORDER BY slot) FROM tessera.advisory_home WHERE node_id = $1::int4", 1, values);
	if (slots == NULL)
		return true;
	/* one node takes all: the next shard that joins gets its share of them */
	heir = tessera_admin_value("SELECT n.node_id FROM tessera.node n LEFT JOIN tessera.advisory_home a USING (node_id) WHERE n.node_id <> $1::int4 "
							   "AND (n.is_shard OR n.is_config)"
							   " GROUP BY n.node_id, n.is_config ORDER BY n.is_config DESC, count(a.slot), n.node_id LIMIT 1", 1, values);
	if (heir == NULL)
		return true;
	if (force)
	{
		values[1] = heir;
		tessera_admin_exec("UPDATE tessera.advisory_home SET node_id = $2::int4, version = version + 1 WHERE node_id = $1::int4", 2, values);
		tessera_catalog_changed();
		tell_new_home(routing, atoi(heir));
		return true;
	}
	given = give(routing, node_id, slots, atoi(heir));
	tell_new_home(routing, atoi(heir));
	return strcmp(given, slots) == 0;
}
