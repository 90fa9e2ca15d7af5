/*
 * sequence_follow.c
 *	  The sequences of a schema follow it to its new shard (S41): what the old home and the new one do. The config node has them do it, in its own
 *	  time (balancer/schema_sequences.c): until then the old home goes on.
 *
 * (1) Old home, internal_sequences_give: a fence (tessera.sequence_fence) in its catalog, behind the locks of all who draw; from its commit on it
 * draws nothing any more, so where the sequences stand is final. Asked again, it says the same. (2) New home, internal_sequences_take: sets its own
 * ones; its standbys have that before the next step. (3) Config node: the old home is asked once more; if nothing has changed (ALTER SEQUENCE
 * may), the schema's row says that the new one is the home.
 *
 * The fence holds as long as this node's copy of the schema's row has the mod for which it was made: another move of the schema begins anew. Who
 * draws or sets looks at home and fence under the lock; who finds the wrong node asks the config node, and waits.
 *
 * A DDL statement that names the schema waits until its sequences have followed (config/name_locks.c), and the lock that it then has on the schema's
 * group keeps the next move from being committed: so none is made, altered or brought into the schema in a transaction that is open meanwhile.
 *
 * Locks: nextval's on all sequences, then the objects' exclusively (sequence_private.h), to the end of the call's transaction. A crash between the
 * steps leaves the fence: the steps are repeated.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"

#include "catalog/change.h"
#include "common/acting_as.h"
#include "common/durable.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "control/calls.h"
#include "ddl/sequence.h"
#include "ddl/sequence_private.h"

#define REFRESH_MS 5000
#define LOCK_MS "1000"			/* for each lock; the hand-over is tried again */


/* The sequences of the cluster in a schema, by name. In the current context. */
static List *
sequences_of(const char *schema)
{
	MemoryContext caller = CurrentMemoryContext;
	const TesseraRouting *routing = tessera_routing_or_error();
	Oid			namespace = get_namespace_oid(schema, false);
	List	   *found = NIL;
	List	   *result = NIL;
	ListCell   *cell;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT c.oid FROM pg_catalog.pg_class AS c WHERE c.relnamespace = $1 AND c.relkind = 'S' ORDER BY c.relname",
						SPI_OK_SELECT, 1, (Oid[]) {OIDOID}, (Datum[]) {ObjectIdGetDatum(namespace)}, NULL);
	MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < n; i++)
		found = lappend_oid(found, DatumGetObjectId(spi_row_value(i, 1)));
	tessera_spi_end(&spi);
	MemoryContextSwitchTo(caller);
	foreach(cell, found)
		if (tessera_is_cluster_sequence(routing, lfirst_oid(cell)))
			result = lappend_oid(result, lfirst_oid(cell));
	return result;
}

/*
 * Against all who draw from them or set them. The locks that an open transaction (ALTER SEQUENCE) may hold come first, and are not waited for long:
 * what is held meanwhile keeps nobody from drawing. Those behind them are held by others for a moment only.
 */
static void
lock_sequences(List *sequences)
{
	int			level = NewGUCNestLevel();
	ListCell   *cell;

	(void) set_config_option("lock_timeout", LOCK_MS, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	foreach(cell, sequences)
		LockRelationOid(lfirst_oid(cell), RowExclusiveLock);
	foreach(cell, sequences)
		if (get_rel_name(lfirst_oid(cell)) != NULL)
			LockDatabaseObject(TESSERA_SEQUENCE_BLOCK_CLASS, lfirst_oid(cell), 0, ExclusiveLock);
	AtEOXact_GUC(true, level);
}

/* ERROR TS002 unless this node's copy of the schema's row has the mod, and names it as the home. */
static void
require_home(const char *schema, int64 mod)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	if (tessera_spi_run("SELECT FROM tessera.schema_placement AS s, tessera.identity AS i WHERE s.schema_name = $1 AND s.mod = $2"
						" AND s.sequence_home = i.node_id", SPI_OK_SELECT, 2, (Oid[]) {NAMEOID, INT8OID},
						(Datum[]) {DirectFunctionCall1(namein, CStringGetDatum(schema)), Int64GetDatum(mod)}, NULL) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("this node is not, or not any more, the home of the sequences of schema \"%s\"", schema)));
	tessera_spi_end(&spi);
}

static void
write_fence(const char *schema, int64 mod)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	tessera_spi_run("INSERT INTO tessera.sequence_fence AS f (schema_name, mod) VALUES ($1, $2)"
					" ON CONFLICT (schema_name) DO UPDATE SET mod = excluded.mod WHERE f.mod <> excluded.mod", SPI_OK_INSERT, 2,
					(Oid[]) {NAMEOID, INT8OID}, (Datum[]) {DirectFunctionCall1(namein, CStringGetDatum(schema)), Int64GetDatum(mod)}, NULL);
	tessera_spi_end(&spi);
}

/* From this call's commit on no value is drawn here */
Jsonb *
tessera_serve_sequences_give(const TesseraSequencesGiveArgs *args)
{
	StringInfoData json;
	List	   *sequences;
	ListCell   *cell;

	tessera_commit_all_durably();
	(void) tessera_routing_refresh(REFRESH_MS);
	require_home(args->schema_name, args->mod);
	sequences = sequences_of(args->schema_name);
	lock_sequences(sequences);
	initStringInfo(&json);
	appendStringInfoChar(&json, '{');
	foreach(cell, sequences)
	{
		Datum		values[3];
		bool		nulls[3];

		/* dropped before it was locked */
		if (get_rel_name(lfirst_oid(cell)) == NULL || !tessera_sequence_read_here(lfirst_oid(cell), values, nulls))
			continue;
		if (json.len > 1)
			appendStringInfoString(&json, ", ");
		escape_json(&json, get_rel_name(lfirst_oid(cell)));
		appendStringInfo(&json, ": [" INT64_FORMAT ", %s]", DatumGetInt64(values[0]), DatumGetBool(values[2]) ? "true" : "false");
	}
	appendStringInfoChar(&json, '}');
	/* a refresh in between is of a later moment, and may have brought another mod */
	require_home(args->schema_name, args->mod);
	write_fence(args->schema_name, args->mod);
	tessera_injection("sequences_given");
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data)));
}

/* setval asks for a privilege, which even the owner may have revoked from himself; it runs nobody's code. */
static void
set_as_superuser(Oid sequence, int64 value, bool called)
{
	TesseraActing before;

	tessera_act_as_cluster(&before);
	(void) DirectFunctionCall3(setval3_oid, ObjectIdGetDatum(sequence), Int64GetDatum(value), BoolGetDatum(called));
	tessera_act_end(&before);
}

/*
 * The sequence of this name here; InvalidOid: there is none, which is one that the old home alone has got. One that was made a moment ago may be
 * prepared here and committed there already: ERROR 55006, and the hand-over is tried again.
 */
static Oid
find_taken(Oid namespace, const char *name)
{
	Oid			sequence = get_relname_relid(name, namespace);
	TesseraSpi	spi;

	if (OidIsValid(sequence))
		return sequence;
	tessera_spi_begin(&spi);
	if (tessera_spi_look("SELECT FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database()", 0, NULL, NULL) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("sequence \"%s\" does not exist here yet, and prepared transactions have not ended", name)));
	tessera_spi_end(&spi);
	AcceptInvalidationMessages();
	return get_relname_relid(name, namespace);
}

void
tessera_serve_sequences_take(const TesseraSequencesTakeArgs *args)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			namespace = get_namespace_oid(args->schema_name, false);
	TesseraSpi	spi;
	int			n;
	char	  **names;
	int64	   *values;
	bool	   *called;
	Oid		   *oids;
	List	   *sequences = NIL;

	tessera_commit_all_durably();
	tessera_spi_begin(&spi);
	n = (int) tessera_spi_run("SELECT e.key, (e.value->>0)::int8, (e.value->>1)::bool FROM jsonb_each($1) AS e", SPI_OK_SELECT, 1, (Oid[]) {JSONBOID},
							  (Datum[]) {JsonbPGetDatum(args->states)}, NULL);
	MemoryContextSwitchTo(caller);
	names = palloc(sizeof(char *) * Max(n, 1));
	values = palloc(sizeof(int64) * Max(n, 1));
	called = palloc(sizeof(bool) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		names[i] = spi_row_text(i, 1);
		values[i] = DatumGetInt64(spi_row_value(i, 2));
		called[i] = DatumGetBool(spi_row_value(i, 3));
	}
	tessera_spi_end(&spi);
	MemoryContextSwitchTo(caller);
	oids = palloc(sizeof(Oid) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		oids[i] = find_taken(namespace, names[i]);
		if (OidIsValid(oids[i]))
			sequences = lappend_oid(sequences, oids[i]);
		else
			ereport(WARNING,
					(errmsg("sequence \"%s.%s\" does not exist here, and stays where it is", args->schema_name, names[i]),
					 errdetail("Its schema has moved here with all that the nodes of the cluster have in common.")));
	}
	lock_sequences(sequences);
	for (int i = 0; i < n; i++)
	{
		if (!OidIsValid(oids[i]) || get_rel_name(oids[i]) == NULL)
			continue;			/* dropped before it was locked: the old home will say so, too */
		set_as_superuser(oids[i], values[i], called[i]);
		tessera_sequence_changed(oids[i]);
	}
	tessera_injection("sequences_taken");
}
