/*
 * give_up_shard.c
 *	  give_up_shard on the config node: a shard is lost for good, and its rows with it. An empty database becomes the shard.
 *
 * The shard keeps its number, its name, its chunks and schemas; the server is another one, as after a failover to a standby that has nothing. So all
 * that holds after a failover holds here (catalog/incarnation.h): migrations that were registered with the lost server cannot be committed, and
 * should it come back it is refused as a server that was replaced. Its decisions are lost, too: who asks the new server about a transaction gets an
 * abort.
 *
 * Called twice. Without `confirm` it says what would be lost and changes nothing. With the word that this has returned, it goes on as follows, in one
 * distributed transaction:
 * 1. Under the registry's lock: nothing answers for the shard at its addresses, and what would be lost is still the same.
 * 2. What the database is that takes the place, and the schema as a script, as in add_node.c.
 * 3. Moves to the shard that the donor has not acknowledged are returned to it: it still has the rows.
 * 4. The node's row names the new server, with a higher incarnation; the database joins with it, owns the shard's chunks, and gets the migrations
 *	  that the shard donated and that have not ended, to settle them.
 * 5. Sequences that had their home there go on from a value ahead of all that other nodes know.
 *
 * A crash leaves all of it or nothing, as with add_node.c.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "catalog/change.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "common/spi_text.h"
#include "common/subtransaction.h"
#include "config/chunks.h"
#include "config/membership.h"
#include "config/round_request.h"
#include "control/calls.h"

#define LOOK_MS 5000			/* for an answer at one of the shard's addresses */
#define MARGIN "1000000"		/* so many values a sequence skips, and twice as many as the largest table of the shard has rows */


/* Is it lost? */

/* What looks at one address. */
typedef struct Look
{
	const TesseraRegistered *node;
	const char *conninfo;
	TesseraNodeFacts *facts;
} Look;

static void
look_at(void *arg)
{
	Look	   *look = arg;
	TesseraConnection *connection = tessera_probe_open(look->node->name, look->conninfo);

	look->facts = tessera_node_facts(connection);
	tessera_probe_close(connection);
}

static void
refuse_alive(const TesseraRegistered *node, const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("shard \"%s\" cannot be given up: it is not lost", node->name),
			 errdetail_internal("%s", detail),
			 errhint("%s", hint)));
}

/* ERROR 55006 if the shard, or a standby of it, is at the address, or a server that lets nobody look. */
static void
check_address(const TesseraRegistered *node, const char *cluster_id, const char *conninfo)
{
	Look		look = {.node = node,.conninfo = psprintf("%s target_session_attrs=any", conninfo)};
	TimestampTz before = tessera_connections_limit(TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOOK_MS));
	ErrorData  *error;

	error = tessera_try(look_at, &look);
	(void) tessera_connections_limit(before);
	if (error != NULL && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	/* who says FATAL is a server: one that starts, or is full, or does not know us */
	if (error != NULL && (error->sqlerrcode != ERRCODE_CONNECTION_FAILURE || (error->detail != NULL && strstr(error->detail, "FATAL") != NULL)))
		refuse_alive(node, psprintf("A server answers at its address: %s", error->detail != NULL ? error->detail : error->message),
					 "If it is not the shard any more, stop it, or make an empty database of that name there.");
	if (error != NULL || look.facts->cluster_id == NULL || !look.facts->is_node || strcmp(look.facts->cluster_id, cluster_id) != 0 ||
		look.facts->node_id != node->node_id)
		return;
	if (look.facts->in_recovery)
		refuse_alive(node, "A standby of it answers.", "Promote the standby: it has the rows.");
	refuse_alive(node, "It answers.", "Use tessera.remove_shard(), which moves its rows away; or tessera.update_node(), if another server has them.");
}

static void
check_lost(const TesseraRegistered *node)
{
	const char *cluster_id = tessera_admin_value("SELECT cluster_id FROM tessera.identity", 0, NULL);
	int			n;
	char	  **addresses;

	if (node->is_config)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" cannot be given up: it is the config node", node->name)));
	if (!node->is_shard)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("node \"%s\" is not a shard", node->name),
				 errhint("Use tessera.remove_router(..., force => true).")));
	addresses = tessera_conninfo_addresses(node->conninfo, &n);
	for (int i = 0; i < n; i++)
		check_address(node, cluster_id, addresses[i]);
}


/* What is lost */

/* Touching chunks of the shard $1 as ranges; each table's rows by their share of its group's bytes there, as last measured. $2: its sequences. */
static const char *const lost_sql =
	"WITH chunk AS (SELECT c.group_id, c.min, c.max, c.node_id, coalesce(e.bytes, 0) AS bytes,"
	"   count(*) FILTER (WHERE c.node_id <> $1::int4) OVER (PARTITION BY c.group_id ORDER BY c.min) AS gap"
	"  FROM tessera.chunk AS c LEFT JOIN tessera.chunk_estimate AS e"
	"   ON e.group_id = c.group_id AND e.min OPERATOR(tessera.=) c.min AND e.node_id = $1::int4),"
	" range AS (SELECT group_id, (array_agg(min ORDER BY min))[1] AS min, (array_agg(max ORDER BY min DESC))[1] AS max,"
	"   (sum(bytes) + count(*)) / sum(sum(bytes) + count(*)) OVER (PARTITION BY group_id) AS share"
	"  FROM chunk WHERE node_id = $1::int4 GROUP BY group_id, gap),"
	" lost AS (SELECT 1 AS n, 'range' AS kind, format('%I.%I', t.schema_name, t.table_name) AS object, r.min AS at,"
	"   textin(tessera.bound_out(r.min)) AS min, textin(tessera.bound_out(r.max)) AS max,"
	"   round(nullif(s.tuples, -1) * r.share)::int8 AS rows, round(s.bytes * r.share)::int8 AS bytes, NULL AS detail"
	"  FROM range AS r JOIN tessera.cluster_table AS t USING (group_id)"
	"   LEFT JOIN tessera.table_statistics AS s ON s.table_id = t.table_id AND s.node_id = $1::int4"
	" UNION ALL SELECT 2, 'placed table', format('%I.%I', t.schema_name, t.table_name), NULL, NULL, NULL, nullif(s.tuples, -1)::int8, s.bytes, NULL"
	"  FROM tessera.schema_placement AS p JOIN tessera.cluster_table AS t ON t.schema_name = p.schema_name AND t.group_id IS NULL"
	"   AND NOT t.replicated LEFT JOIN tessera.table_statistics AS s ON s.table_id = t.table_id AND s.node_id = $1::int4"
	"  WHERE p.node_id = $1::int4"
	" UNION ALL SELECT 3, 'sequence', format('%I.%I', q.schema, q.name), NULL, NULL, NULL, NULL, NULL, 'goes on after ' || q.value"
	"  FROM jsonb_to_recordset($2::jsonb) AS q (schema text, name text, value text))"
	" SELECT coalesce(jsonb_agg(jsonb_build_object('kind', kind, 'object', object, 'min', min, 'max', max, 'rows', rows, 'bytes', bytes,"
	"  'detail', detail, 'confirm_with', $3) ORDER BY n, object, at), '[]') FROM lost";

/* As the text of a JSON array; sequences: of describe_sequences; confirm_with: NULL: it is done. Access must be open. */
static char *
describe_lost(const char *node_id, const char *sequences, const char *confirm_with)
{
	const char *values[] = {node_id, sequences, confirm_with};

	return tessera_admin_value(lost_sql, 3, values);
}

/* A word that is another one as soon as something else would be lost, or the shard has another server. Access must be open. */
static char *
word_for(const char *node_id)
{
	return tessera_admin_value("SELECT left(encode(sha256(convert_to(concat_ws(' ', i.cluster_id, n.node_id, n.incarnation,"
							   " (SELECT string_agg(concat_ws(' ', c.group_id, textin(tessera.bound_out(c.min)), textin(tessera.bound_out(c.max))),"
							   "   ' ' ORDER BY c.group_id, c.min) FROM tessera.chunk AS c WHERE c.node_id = n.node_id),"
							   " (SELECT string_agg(t.table_id::text, ' ' ORDER BY t.table_id) FROM tessera.cluster_table AS t"
							   "   LEFT JOIN tessera.schema_placement AS p USING (schema_name) WHERE t.group_id IS NOT NULL"
							   "   OR (p.node_id = n.node_id AND NOT t.replicated))), 'UTF8')), 'hex'), 16)"
							   " FROM tessera.identity AS i, tessera.node AS n WHERE n.node_id = $1::int4", 1, &node_id);
}


/* Sequences */

/* Appends an element to a list of JSON values. */
static void
append_json(StringInfo list, const char *value)
{
	appendStringInfo(list, "%s%s", list->len > 1 ? ", " : "", value);
}

/* How far the sequences of the schemas (name[] as text) have come, as far as the nodes know but the lost one: a JSON array of their answers. */
static char *
collect_marks(const TesseraRouting *routing, int32 lost, const char *schemas)
{
	StringInfoData list;

	initStringInfo(&list);
	appendStringInfoChar(&list, '[');
	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;
		char	   *marks;

		if (node_id == lost)
			continue;
		tessera_call_sequence_marks(tessera_to_node(node_id), schemas, &marks);
		append_json(&list, marks);
	}
	appendStringInfoChar(&list, ']');
	return list.data;
}

/*
 * The furthest mark of each sequence, and beyond that as many values as may have been drawn since: $3, or a sixteenth of what is left if that is
 * less. A sequence that nobody knows anything of has begun, too.
 */
static const char *const ahead_sql =
	"WITH mark AS (SELECT s.key AS schema, q.key AS name, q.value::numeric AS value FROM jsonb_array_elements($2::jsonb) AS m,"
	"   jsonb_each(m) AS s, jsonb_each_text(s.value) AS q),"
	" sequence AS (SELECT n.nspname AS schema, c.relname AS name, q.seqincrement::numeric AS step, q.seqmin::numeric AS least,"
	"   q.seqmax::numeric AS most, coalesce((SELECT CASE WHEN q.seqincrement > 0 THEN max(m.value) ELSE min(m.value) END FROM mark AS m"
	"     WHERE m.schema = n.nspname AND m.name = c.relname), q.seqstart) AS at"
	"  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_sequence AS q ON q.seqrelid = c.oid"
	"  WHERE n.nspname = ANY ($1::name[])"
	"   AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')),"
	" ahead AS (SELECT schema, name, least(most, greatest(least, at + step * trunc(least($3::numeric, (CASE WHEN step > 0 THEN most - at"
	"   ELSE at - least END) / abs(step) / 16)))) AS value FROM sequence)"
	" SELECT coalesce(jsonb_agg(jsonb_build_object('schema', schema, 'name', name, 'value', value::text) ORDER BY schema, name), '[]') FROM ahead";

/* The values that sequences go on from whose home the shard was: a JSON array, or "[]". Access must be open. */
static char *
find_sequences(const TesseraRouting *routing, const TesseraRegistered *node, const char *node_id)
{
	const char *values[3];

	values[0] = tessera_admin_value("SELECT array_agg(schema_name) FROM tessera.schema_placement"
									" WHERE coalesce(sequence_home, node_id) = $1::int4", 1, &node_id);
	if (values[0] == NULL)
		return "[]";
	values[1] = collect_marks(routing, node->node_id, values[0]);
	values[2] = tessera_admin_value("SELECT " MARGIN " + 2 * coalesce(max(greatest(tuples, 0)), 0)::int8 FROM tessera.table_statistics"
									" WHERE node_id = $1::int4", 1, &node_id);
	return tessera_admin_value(ahead_sql, 3, values);
}

/* On the new server. Access must be open. */
static void
put_sequences_ahead(int32 node_id, const char *sequences)
{
	uint64		n = tessera_admin_exec("SELECT q.schema, jsonb_object_agg(q.name, jsonb_build_array(q.value::int8, true))"
									   " FROM jsonb_to_recordset($1::jsonb) AS q (schema text, name text, value text) GROUP BY q.schema ORDER BY 1",
									   1, &sequences);
	char	  **schemas = palloc(sizeof(char *) * Max(n, 1));
	char	  **states = palloc(sizeof(char *) * Max(n, 1));

	for (uint64 i = 0; i < n; i++)
	{
		schemas[i] = tessera_admin_field(i, 1);
		states[i] = tessera_admin_field(i, 2);
	}
	for (uint64 i = 0; i < n; i++)
		tessera_call_sequences_take(tessera_on_lane(tessera_writing(tessera_to_node(node_id)), TESSERA_LANE_TRANSACTION), schemas[i], states[i]);
}


/* The change */

static void
return_move(void *arg)
{
	TesseraReturnMoveArgs args = {.migration_id = arg,.term = tessera_require_cluster()->term};

	(void) tessera_serve_return_move(&args);
}

/* Moves to the shard whose rows the donor still has. One whose range has gone on to another shard since is not one of them. Access must be open. */
static void
return_moves(const TesseraRegistered *node, const char *node_id)
{
	pg_uuid_t **ids;
	uint64		n;

	n = tessera_admin_exec("SELECT m.migration_id FROM tessera.migration AS m JOIN tessera.migration_outcome AS o USING (migration_id)"
						   " WHERE m.recipient = $1::int4 AND o.outcome = 'committed' ORDER BY m.started DESC", 1, &node_id);
	ids = palloc(sizeof(pg_uuid_t *) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
		ids[i] = tessera_call_to_uuid(tessera_admin_field(i, 1));
	for (uint64 i = 0; i < n; i++)
	{
		ErrorData  *error = tessera_try(return_move, ids[i]);

		if (error == NULL)
			continue;
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("migration %s to shard \"%s\" is not returned to its donor: %s", tessera_call_from_uuid(ids[i]), node->name,
						error->message)));
	}
}

/* The node's row, and what was measured there. Access must be open. */
static void
write_server(const TesseraChange *change, const TesseraNodeFacts *there, const char *node_id)
{
	const char *row[] = {node_id, change->conninfo, there->system_id, there->database, psprintf("%d", there->timeline)};

	tessera_admin_exec("UPDATE tessera.node SET conninfo = $2, system_id = $3::int8, database = $4, timeline = $5::int4,"
					   " incarnation = incarnation + 1, server_start = NULL WHERE node_id = $1::int4", 5, row);
	tessera_admin_exec("DELETE FROM tessera.chunk_estimate WHERE node_id = $1::int4", 1, row);
	tessera_catalog_changed();
}

/* Returns what was lost. The registry is locked, nothing is written yet. */
static char *
give_up(TesseraChange *change, const TesseraRegistered *node, const char *node_id)
{
	const TesseraRouting *routing = tessera_require_cluster();
	TesseraNewcomer newcomer;
	TesseraSpi	access;
	char	   *sequences;
	char	   *lost;
	char	   *unfinished;

	tessera_spi_begin(&access);
	if (change->conninfo == NULL)
		change->conninfo = node->conninfo;
	tessera_newcomer_check(routing, change, &newcomer);
	sequences = find_sequences(routing, node, node_id);
	return_moves(node, node_id);
	lost = describe_lost(node_id, sequences, NULL);
	write_server(change, newcomer.there, node_id);
	tessera_newcomer_join(change, &newcomer, false, node_id);
	unfinished = tessera_admin_value("SELECT tessera_internal.unfinished_donations(node_id, incarnation) FROM tessera.node"
									 " WHERE node_id = $1::int4", 1, &node_id);
	tessera_call_take_lost_place(tessera_writing(tessera_to_node(node->node_id)), unfinished);
	put_sequences_ahead(node->node_id, sequences);
	tessera_changelog_add(change->action, node->name, NULL, change->by, lost, NULL);
	tessera_announce_others(node->node_id, tessera_reload_call());
	tessera_round_after_commit();
	tessera_spi_end(&access);
	return lost;
}

/* Returns what is lost, or would be, as the text of a JSON array. */
char *
tessera_give_up_shard(TesseraChange *change)
{
	TesseraSpi	access;
	TesseraRegistered *node;
	char	   *node_id;
	char	   *word;
	char	   *lost = NULL;

	(void) tessera_require_cluster();
	if (change->confirm != NULL)
		tessera_require_clean_transaction();
	tessera_spi_begin(&access);
	if (change->confirm != NULL)
		tessera_registry_lock();
	node = tessera_registered_or_error(change->name);
	node_id = tessera_admin_keep(psprintf("%d", node->node_id));
	check_lost(node);
	word = word_for(node_id);
	if (change->confirm == NULL)
		lost = describe_lost(node_id, "[]", word);
	tessera_spi_end(&access);
	if (change->confirm == NULL)
		return lost;
	if (strcmp(change->confirm, word) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("that is not the word to confirm that shard \"%s\" is given up", node->name),
				 errdetail("It belongs to what would be lost, which may have changed."),
				 errhint("Call tessera.give_up_shard() without confirm, see what it says, and pass the word in confirm_with.")));
	return give_up(change, node, node_id);
}
