/*
 * sequence.c
 *	  Which sequences are the cluster's, which node is the home of each, and what other nodes ask the home; see sequence.h.
 *
 * The other files: sequence_functions.c (nextval and the like, in the session that calls them), sequence_pool.c (values that this node has fetched
 * and not given out), sequence_fetcher.c (the worker that fetches them ahead of use), sequence_home.c (what the home does when it is asked).
 *
 * Memory: the home of each sequence that the session has used, in a hash table until the backend exits, valid for one routing image.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/spi.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "ddl/ddl.h"
#include "ddl/sequence.h"
#include "ddl/sequence_private.h"
#include "transaction/participant.h"


#define HOME_TIMEOUT 30000		/* ms for the sequences of a schema to be handed over */

/* Where a sequence belongs, while the routing image has this number and the sequence is in this schema. */
typedef struct SequenceHome
{
	Oid			sequence;		/* key */
	uint64		image;
	Oid			namespace;
	bool		cluster;
	bool		moves;			/* with its schema: its home may change at any time */
	bool		fenced;			/* this node has handed it over */
	int32		home;
} SequenceHome;

static HTAB *homes = NULL;

/* ---- whose sequence ---- */

static void
find_home(const TesseraRouting *routing, const char *schema, SequenceHome *entry)
{
	static const Oid types[] = {NAMEOID};
	const TesseraNode *config = tessera_routing_config(routing);
	NameData	name;
	Datum		value = NameGetDatum(&name);
	TesseraSpi	access;

	entry->home = config ? config->node_id : routing->self;
	entry->moves = entry->fenced = false;
	namestrcpy(&name, schema);
	tessera_spi_begin(&access);
	if (tessera_spi_look("SELECT coalesce(s.sequence_home, s.node_id), s.group_id IS NOT NULL, f.mod IS NOT NULL FROM tessera.schema_placement AS s"
						 " LEFT JOIN tessera.sequence_fence AS f ON f.schema_name = s.schema_name AND f.mod = s.mod WHERE s.schema_name = $1", 1,
						 types, &value) > 0)
	{
		entry->home = pg_strtoint32(SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
		entry->moves = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2)[0] == 't';
		entry->fenced = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 3)[0] == 't' && entry->home == routing->self;
	}
	tessera_spi_end(&access);
}

static bool
belongs_to_cluster(const TesseraRouting *routing, Oid sequence)
{
	Oid			owner;
	int32		column;

	if (get_rel_relkind(sequence) != RELKIND_SEQUENCE || get_rel_persistence(sequence) == RELPERSISTENCE_TEMP ||
		get_rel_namespace(sequence) == get_namespace_oid("tessera", true) || OidIsValid(getExtensionOfObject(RelationRelationId, sequence)))
		return false;
	if (sequenceIsOwned(sequence, DEPENDENCY_AUTO, &owner, &column) || sequenceIsOwned(sequence, DEPENDENCY_INTERNAL, &owner, &column))
		return OidIsValid(tessera_cluster_root(routing, owner));
	return true;
}

static SequenceHome *
home_of(const TesseraRouting *routing, Oid sequence)
{
	Oid			namespace = get_rel_namespace(sequence);
	SequenceHome *entry;
	bool		found;

	if (homes == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(SequenceHome)};

		homes = hash_create("tessera homes of sequences", 32, &control, HASH_ELEM | HASH_BLOBS);
	}
	entry = hash_search(homes, &sequence, HASH_ENTER, &found);
	if (!found)
		entry->image = PG_UINT64_MAX;
	if (entry->image != routing->sequence || entry->namespace != namespace)
	{
		entry->image = PG_UINT64_MAX;	/* should what follows fail */
		entry->cluster = belongs_to_cluster(routing, sequence);
		entry->home = routing->self;
		entry->moves = entry->fenced = false;
		if (entry->cluster)
			find_home(routing, get_namespace_name(namespace), entry);
		entry->image = routing->sequence;
		entry->namespace = namespace;
	}
	return entry;
}

bool
tessera_is_cluster_sequence(const TesseraRouting *routing, Oid sequence)
{
	return home_of(routing, sequence)->cluster;
}

int32
tessera_sequence_home(const TesseraRouting *routing, Oid sequence)
{
	return home_of(routing, sequence)->home;
}

bool
tessera_sequence_begin(Oid sequence, LOCKMODE mode)
{
	const TesseraRouting *routing = tessera_routing();
	SequenceHome *entry;

	if (routing == NULL)
		return true;
	/* after a promotion: the server before may have handed it over */
	if (!tessera_routing_await_placements(HOME_TIMEOUT))
		ereport(ERROR,
				(errcode(ERRCODE_CANNOT_CONNECT_NOW),
				 errmsg("this node was promoted, and whether sequence \"%s\" is still here is not known yet", get_rel_name(sequence)),
				 errdetail("The config node has to confirm it."),
				 errhint("tessera.recover_node() says what is in the way.")));
	/* a lock that is held already brings no news of what it protects: the image tells by itself */
	LockDatabaseObject(TESSERA_SEQUENCE_BLOCK_CLASS, sequence, 0, mode);
	routing = tessera_routing();
	entry = routing ? home_of(routing, sequence) : NULL;
	if (entry == NULL || (entry->home == routing->self && !entry->fenced))
		return true;
	UnlockDatabaseObject(TESSERA_SEQUENCE_BLOCK_CLASS, sequence, 0, mode);
	return false;
}

void
tessera_sequence_end(Oid sequence, LOCKMODE mode)
{
	if (tessera_routing() != NULL)
		UnlockDatabaseObject(TESSERA_SEQUENCE_BLOCK_CLASS, sequence, 0, mode);
}

bool
tessera_sequence_moves(const TesseraRouting *routing, Oid sequence)
{
	return routing != NULL && (routing->placements_unknown || home_of(routing, sequence)->moves);
}

int32
tessera_sequence_await_home(Oid sequence, TimestampTz *since, int *attempts)
{
	TimestampTz now = GetCurrentTimestamp();
	long		elapsed;

	if ((*attempts)++ == 0)
		*since = now;
	elapsed = (now - *since) / 1000;
	if (elapsed > HOME_TIMEOUT)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("sequence \"%s\" is being handed over to another node", get_rel_name(sequence)),
				 errhint("Try again. tessera.schemas shows where the sequences of a schema are: both shards must answer, and transactions that have"
						 " altered sequences there must end.")));
	CHECK_FOR_INTERRUPTS();
	(void) tessera_routing_refresh(HOME_TIMEOUT - (int) elapsed + 1);
	if (*attempts > 1)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1L << Min(*attempts, 6), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return tessera_sequence_home(tessera_routing_or_error(), sequence);
}

/* ---- the sequence on this node ---- */

Relation
tessera_sequence_open(Oid sequence, LOCKMODE mode)
{
	Relation	rel = relation_open(sequence, mode);

	if (rel->rd_rel->relkind != RELKIND_SEQUENCE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a sequence", RelationGetRelationName(rel))));
	return rel;
}

bool
tessera_sequence_is_own(Relation rel)
{
	return tessera_made_here(rel);
}

void
tessera_sequence_changed(Oid sequence)
{
	tessera_sequence_drop_own(sequence);
	tessera_pool_forget(sequence);
}

/* ---- calls to the home ---- */

/* The home of a sequence: in the transaction, or outside it. */
static TesseraCallTarget
home_target(int32 home, bool inside)
{
	return tessera_on_lane(tessera_writing(tessera_to_node(home)), inside ? TESSERA_LANE_TRANSACTION : TESSERA_LANE_CONTROL);
}

/* {first, step, count, ...} */
static void
read_block(const char *text, TesseraBlock *block)
{
	ArrayType  *array = DatumGetArrayTypeP(OidInputFunctionCall(F_ARRAY_IN, unconstify(char *, text), INT8OID, -1));
	Datum	   *values;
	int			n;

	deconstruct_array(array, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &values, NULL, &n);
	block->nruns = 0;
	for (int i = 0; i + 2 < n && block->nruns < TESSERA_POOL_RUNS; i += 3)
	{
		TesseraRun64 *run = &block->runs[block->nruns];

		run->first = DatumGetInt64(values[i]);
		run->step = DatumGetInt64(values[i + 1]);
		run->count = (int32) DatumGetInt64(values[i + 2]);
		if (run->count > 0)
			block->nruns++;
	}
}

bool
tessera_sequence_draw(const TesseraRouting *routing, int32 home, bool inside, Oid sequence, int n, TesseraBlock *block)
{
	char	   *runs;

	tessera_call_sequence_block(home_target(home, inside), tessera_qualified_name(sequence), n, &runs);
	if (runs != NULL)
		read_block(runs, block);
	return runs != NULL;
}

void
tessera_sequence_draw_within(const TesseraRouting *routing, int32 home, Oid sequence, int n, int timeout, TesseraBlock *block)
{
	char	   *runs;

	tessera_call_sequence_block(tessera_within(home_target(home, false), timeout), tessera_qualified_name(sequence), n, &runs);
	if (runs != NULL)
		read_block(runs, block);
}

bool
tessera_sequence_set(const TesseraRouting *routing, int32 home, bool inside, Oid sequence, int64 value, bool called)
{
	bool		done;

	tessera_call_sequence_set(home_target(home, inside), tessera_qualified_name(sequence), value, called, &done);
	return done;
}

bool
tessera_sequence_state(const TesseraRouting *routing, int32 home, bool inside, Oid sequence, Datum *values, bool *nulls)
{
	char	   *answer;
	long long	last;
	long long	count;
	int			called;
	int			current;

	tessera_call_sequence_state(home_target(home, inside), tessera_qualified_name(sequence), &answer);
	if (answer == NULL || sscanf(answer, "%lld %lld %d %d", &last, &count, &called, &current) != 4)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("the home of sequence \"%s\" did not return its last value", get_rel_name(sequence))));
	values[0] = Int64GetDatum(last);
	values[1] = Int64GetDatum(count);
	values[2] = BoolGetDatum(called != 0);
	memset(nulls, 0, sizeof(bool) * 3);
	return current != 0;
}

void
tessera_sequence_forget_everywhere(const TesseraRouting *routing, Oid sequence)
{
	const char *name = tessera_qualified_name(sequence);

	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;

		if (node_id != routing->self)
			tessera_call_sequence_forget(tessera_on_lane(tessera_to_node(node_id), TESSERA_LANE_CONTROL), name);
	}
	tessera_sequence_changed(sequence);
}

/* ---- another schema, another home ---- */

typedef struct RehomedSequence
{
	Oid			sequence;
	int32		home;			/* before */
} RehomedSequence;

List *
tessera_sequences_before(Node *statement, const TesseraRouting *routing)
{
	RangeVar   *relation = IsA(statement, AlterObjectSchemaStmt) ? ((AlterObjectSchemaStmt *) statement)->relation : NULL;
	Oid			relid = relation ? RangeVarGetRelid(relation, NoLock, true) : InvalidOid;
	List	   *sequences = NIL;
	List	   *result = NIL;
	ListCell   *cell;

	if (OidIsValid(relid))
		sequences = get_rel_relkind(relid) == RELKIND_SEQUENCE ? list_make1_oid(relid) : getOwnedSequences(relid);
	foreach(cell, sequences)
	{
		RehomedSequence *one = palloc(sizeof(RehomedSequence));

		if (!tessera_is_cluster_sequence(routing, lfirst_oid(cell)))
			continue;
		one->sequence = lfirst_oid(cell);
		one->home = tessera_sequence_home(routing, one->sequence);
		result = lappend(result, one);
	}
	return result;
}

void
tessera_sequences_after(List *before)
{
	const TesseraRouting *routing = tessera_routing();
	ListCell   *cell;

	foreach(cell, before)
	{
		RehomedSequence *one = lfirst(cell);
		int32		home = tessera_sequence_home(routing, one->sequence);
		Datum		row[3];
		bool		nulls[3];

		if (home == one->home)
			continue;
		/* there it is in its new schema already, which has another home; the schemas' groups are locked, so nobody hands it over meanwhile */
		(void) tessera_sequence_state(routing, one->home, true, one->sequence, row, nulls);
		if (!tessera_sequence_set(routing, home, true, one->sequence, DatumGetInt64(row[0]), DatumGetBool(row[2])))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("sequence \"%s\" is being handed over to another node", get_rel_name(one->sequence))));
	}
}
