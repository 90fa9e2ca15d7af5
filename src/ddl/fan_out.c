/*
 * fan_out.c
 *	  One DDL statement on every node, in one distributed transaction.
 *
 * Phases of an attempt (attempts.h), all in one subtransaction: lock the names on the config node (and see that no migration runs); lock the tables
 * on all nodes; run the statement here, tracked; send it to every other node, by node_id. Each waits only a short time for any lock; if one is not
 * had, the subtransaction is rolled back everywhere and with it every lock, and the next attempt starts after a pause. The other end tracks the
 * statement in the same way and fires no event triggers: those fire here, and what their functions do is routed like anything else.
 *
 * A statement nested in a running one (event trigger) first sends the outer one, so that the others see both in order.
 *
 * Memory: a FanOut lives on its caller's stack; commands in flight in TopTransactionContext. A crash: the two-phase commit settles it (transaction/).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "common/acting_as.h"
#include "common/errors.h"
#include "common/fixed_settings.h"
#include "common/injection.h"
#include "common/spi.h"
#include "common/text.h"
#include "control/calls.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "ddl/sequence.h"
#include "ddl/statement_text.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"
#include "transaction/settings_mirror.h"


/* Sizes of databases are compared in these, bytes. */
#define SIZE_UNIT (64 * 1024 * 1024)

/* A fetch from the config node is waited for so long, ms, however short the wait for locks is to be. */
#define REFRESH_MS 5000

/* A statement that has begun here. */
typedef struct FanOut
{
	TesseraUtility *utility;
	const TesseraRouting *routing;
	TesseraStatementObjects *named;
	Oid			user;			/* whose statement it is, and by which settings; functions of event triggers may have others */
	int			security;
	TesseraMirroredSettings settings;
	pg_uuid_t	seed;
	int32		home;			/* chosen before */
	int32		home_found;		/* or when the statement had run */
	bool		sent;
	SubTransactionId sent_in;
	struct FanOut *outer;
} FanOut;

/* What a router has announced for the next statement of this internal connection. */
typedef struct Announced
{
	bool		set;
	pg_uuid_t	seed;
	int32		home;
	int32		lock_timeout;
} Announced;

void		(*tessera_ddl_end_migrations) (const char *groups, const char *by, int timeout_ms) = NULL;
bool		(*tessera_ddl_is_of_migration) (int pid) = NULL;

static FanOut *current = NULL;
static Announced announced = {0};

void
tessera_ddl_set_here(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* ---- the config node's lock ---- */

static char *
text_array(List *texts)
{
	Datum	   *values = palloc(sizeof(Datum) * Max(list_length(texts), 1));
	ListCell   *cell;

	foreach(cell, texts)
		values[foreach_current_index(cell)] = CStringGetTextDatum(lfirst(cell));
	return OidOutputFunctionCall(F_ARRAY_OUT, PointerGetDatum(construct_array(values, list_length(texts), TEXTOID, -1, false, TYPALIGN_INT)));
}

static char *
uuid_array(List *uuids)
{
	StringInfoData text;
	ListCell   *cell;

	initStringInfo(&text);
	foreach(cell, uuids)
		appendStringInfo(&text, "%s%s", text.len ? "," : "", tessera_uuid_text(lfirst(cell)));
	return psprintf("{%s}", text.data);
}

static char *
node_array(const TesseraRouting *routing)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < routing->nnodes; i++)
		appendStringInfo(&text, "%s%d", i ? "," : "", tessera_routing_node_at(routing, i)->node_id);
	return psprintf("{%s}", text.data);
}

char *
tessera_ddl_by(const TesseraUtility *utility, const TesseraStatementObjects *named)
{
	const char *name = CreateCommandName(utility->statement->utilityStmt);

	return named->cluster ? psprintf("%s of \"%s\"", name, named->cluster) : pstrdup(name);
}

void
tessera_ddl_lock(const TesseraRouting *routing, List *keys, List *groups, const char *by, void (*ready) (void *arg), void *arg)
{
	const TesseraNode *config = tessera_routing_config(routing);
	const char *nodes = node_array(routing);
	const char *names = text_array(keys);
	const char *group_ids = uuid_array(groups);
	char	   *answer;

	if (config == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this node does not know its config node")));
	tessera_call_ddl_lock(tessera_writing(tessera_to_config()), nodes, names, group_ids, tessera_ddl_attempt_timeout(), &answer);
	if (answer != NULL && strcmp(answer, "busy") == 0)
	{
		/* the names stay locked meanwhile */
		if (ready != NULL)
			ready(arg);
		tessera_ddl_end_migrations(group_ids, by, tessera_ddl_lock_timeout);
		tessera_call_ddl_lock(tessera_writing(tessera_to_config()), nodes, names, group_ids, tessera_ddl_attempt_timeout(), &answer);
	}
	if (answer != NULL && strncmp(answer, "held ", 5) == 0)
		tessera_ddl_held(config->node_id, answer);
	if (answer != NULL && (strcmp(answer, "busy") == 0 || strcmp(answer, "again") == 0))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_CONFLICTING),
				 errmsg("new migrations of the tables keep starting"),
				 errhint("Look at tessera.migrations.")));
	if (answer != NULL && strncmp(answer, "sequences ", 10) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the sequences of schema \"%s\" have not followed its tables to their new shard yet", answer + 10),
				 errhint("Try again. tessera.schemas shows where they are: both shards must answer, and transactions that have altered sequences"
						 " there must end.")));
	if (answer != NULL && strcmp(answer, "ok") != 0)
	{
		/* The catalog has changed: this node fetches that before the next attempt. */
		(void) tessera_routing_refresh(tessera_ddl_attempt_timeout());
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the cluster's nodes or tables have changed since this node's last refresh"),
				 errhint("Try again in a moment.")));
	}
}

static List *
add_group(List *groups, const TesseraGroup *group)
{
	pg_uuid_t  *id;
	ListCell   *cell;

	if (group == NULL)
		return groups;
	foreach(cell, groups)
		if (memcmp(lfirst(cell), &group->group_id, sizeof(pg_uuid_t)) == 0)
			return groups;
	id = palloc(sizeof(pg_uuid_t));
	*id = group->group_id;
	return lappend(groups, id);
}

List *
tessera_ddl_groups(const TesseraRouting *routing, List *relids, List *namespaces)
{
	List	   *groups = NIL;
	ListCell   *cell;

	foreach(cell, relids)
	{
		const TesseraTable *table = tessera_routing_table(routing, lfirst_oid(cell));

		if (table)
			groups = add_group(groups, tessera_table_placement_group(routing, table));
	}
	foreach(cell, namespaces)
	{
		char	   *name = get_namespace_name(lfirst_oid(cell));
		const TesseraSchema *schema = name ? tessera_routing_schema(routing, name) : NULL;

		if (schema && schema->group >= 0)
			groups = add_group(groups, tessera_routing_group(routing, schema->group));
	}
	return groups;
}

/* Groups that came to light while the statement ran (CASCADE). */
static List *
other_groups(List *found, List *locked)
{
	List	   *result = NIL;
	ListCell   *cell;
	ListCell   *other;

	foreach(cell, found)
	{
		bool		known = false;

		foreach(other, locked)
			known = known || memcmp(lfirst(cell), lfirst(other), sizeof(pg_uuid_t)) == 0;
		if (!known)
			result = lappend(result, lfirst(cell));
	}
	return result;
}

/* ---- a shard for new schemas ---- */

static int
schemas_on(int32 node_id)
{
	static const Oid types[] = {INT4OID};
	Datum		value = Int32GetDatum(node_id);
	TesseraSpi	access;
	uint64		n;

	tessera_spi_begin(&access);
	n = tessera_spi_run("SELECT 1 FROM tessera.schema_placement WHERE node_id = $1", SPI_OK_SELECT, 1, types, &value, NULL);
	tessera_spi_end(&access);
	return (int) n;
}

/* The shard with the least data (S106), to 64 MB; among equals the one with the fewest schemas. 0: there is no shard. */
static int32
choose_home(const TesseraRouting *routing)
{
	int32		best = 0;
	int64		best_size = 0;
	int			best_schemas = 0;

	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);
		int64		size;
		int			schemas;

		if (!node->is_shard || node->draining)
			continue;
		(void) tessera_call_database_size(tessera_to_node(node->node_id), &size);
		size /= SIZE_UNIT;
		schemas = schemas_on(node->node_id);
		if (best == 0 || size < best_size || (size == best_size && schemas < best_schemas))
		{
			best = node->node_id;
			best_size = size;
			best_schemas = schemas;
		}
	}
	return best;
}

static bool
schema_is_placed(Oid namespace)
{
	static const Oid types[] = {NAMEOID};
	NameData	name;
	Datum		value = NameGetDatum(&name);
	TesseraSpi	access;
	bool		placed;

	namestrcpy(&name, get_namespace_name(namespace));
	tessera_spi_begin(&access);
	placed = tessera_spi_run("SELECT 1 FROM tessera.schema_placement WHERE schema_name = $1", SPI_OK_SELECT, 1, types, &value, NULL) > 0;
	tessera_spi_end(&access);
	return placed;
}

/* Only statements that can make a schema, or the first table of one, need to know. */
static bool
needs_home(Node *statement)
{
	if (IsA(statement, CreateSchemaStmt) || IsA(statement, CreateExtensionStmt))
		return true;
	if (IsA(statement, CreateStmt) || IsA(statement, CreateSeqStmt) || IsA(statement, CreateTableAsStmt))
	{
		RangeVar   *relation = IsA(statement, CreateStmt) ? ((CreateStmt *) statement)->relation :
			IsA(statement, CreateSeqStmt) ? ((CreateSeqStmt *) statement)->sequence : ((CreateTableAsStmt *) statement)->into->rel;
		Oid			namespace = relation->schemaname ? get_namespace_oid(relation->schemaname, true) : RangeVarGetCreationNamespace(relation);

		return OidIsValid(namespace) && !schema_is_placed(namespace);
	}
	if (IsA(statement, AlterTableStmt))
	{
		ListCell   *cell;

		foreach(cell, ((AlterTableStmt *) statement)->cmds)
			if (lfirst_node(AlterTableCmd, cell)->subtype == AT_DetachPartition)
				return true;
	}
	return false;
}

/* ---- the statement on this node ---- */

static void
note_partitions(TesseraTrack *track, Node *statement, const TesseraRouting *routing)
{
	ListCell   *cell;

	if (!IsA(statement, AlterTableStmt))
		return;
	foreach(cell, ((AlterTableStmt *) statement)->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, cell);

		if ((command->subtype == AT_AttachPartition || command->subtype == AT_DetachPartition) && IsA(command->def, PartitionCmd))
		{
			Oid			parent = RangeVarGetRelid(((AlterTableStmt *) statement)->relation, NoLock, true);
			Oid			relid = RangeVarGetRelid(((PartitionCmd *) command->def)->name, NoLock, true);
			TesseraPartitionChange *change;
			MemoryContext before;

			if (!OidIsValid(relid))
				continue;
			before = MemoryContextSwitchTo(track->context);
			change = palloc(sizeof(TesseraPartitionChange));
			change->relid = relid;
			change->root = OidIsValid(parent) ? tessera_cluster_root(routing, parent) : InvalidOid;
			track->partitions = lappend(track->partitions, change);
			MemoryContextSwitchTo(before);
		}
	}
}

bool
tessera_detaches_concurrently(Node *statement)
{
	ListCell   *cell;

	if (!IsA(statement, AlterTableStmt))
		return false;
	foreach(cell, ((AlterTableStmt *) statement)->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, cell);

		if (command->subtype == AT_DetachPartition && IsA(command->def, PartitionCmd) && ((PartitionCmd *) command->def)->concurrent)
			return true;
	}
	return false;
}

/* Runs the statement without its CONCURRENTLY. */
static void
run_at_once(TesseraUtility *utility)
{
	TesseraUtility copy = *utility;
	ListCell   *cell;

	copy.statement = copyObject(utility->statement);
	if (IsA(copy.statement->utilityStmt, DropStmt))
		((DropStmt *) copy.statement->utilityStmt)->concurrent = false;
	else
		foreach(cell, castNode(AlterTableStmt, copy.statement->utilityStmt)->cmds)
			castNode(PartitionCmd, lfirst_node(AlterTableCmd, cell)->def)->concurrent = false;
	tessera_utility_run(&copy);
}

/* Statements that run CONCURRENTLY on one server are part of the distributed transaction here. */
static void
run_statement(TesseraUtility *utility)
{
	Node	   *statement = utility->statement->utilityStmt;

	if (IsA(statement, IndexStmt) && ((IndexStmt *) statement)->concurrent)
		tessera_make_unbuilt_index(utility);
	else if ((IsA(statement, DropStmt) && ((DropStmt *) statement)->concurrent) || tessera_detaches_concurrently(statement))
		run_at_once(utility);
	else
		tessera_utility_run(utility);
}

/*
 * Runs a statement that another node has sent: event triggers and messages are the router's. Core fires no event trigger for a part of a statement.
 * (The role "replica" would turn off triggers, rules and foreign keys as well, for what functions of the statement write: of anybody's tables.)
 */
static void
run_quietly(TesseraUtility *utility)
{
	int			level = NewGUCNestLevel();

	utility->context = PROCESS_UTILITY_SUBCOMMAND;
	tessera_ddl_set_here("client_min_messages", "error");
	run_statement(utility);
	AtEOXact_GUC(true, level);
}

/* Runs the statement and writes this node's catalog rows. The track's lists stay readable until the transaction ends. */
static TesseraTrack *
run_tracked(TesseraUtility *utility, const TesseraRouting *routing, List *relids, const pg_uuid_t *seed, int32 home, bool router)
{
	Node	   *statement = utility->statement->utilityStmt;
	TesseraUtility copy = *utility;
	TesseraTrack *track;

	copy.read_only = true;		/* it may be run again */
	track = tessera_track_begin(seed, home, router);
	PG_TRY();
	{
		tessera_rules_hidden_rows(statement, routing, relids);
		note_partitions(track, statement, routing);
		if (router)
		{
			run_statement(&copy);
			tessera_rules_after(statement, routing);
		}
		else
			run_quietly(&copy);
		tessera_keep_capture_trigger(statement, routing);
		tessera_keep_library(statement);
		tessera_track_end(track, statement, routing);
	}
	PG_CATCH();
	{
		tessera_track_abort(track);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return track;
}

/* ---- to the others ---- */

static void
send_to_node(FanOut *f, const TesseraRouting *routing, int32 node_id, const char *sql)
{
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
	TesseraCommandNeeds needs = {.write = true};
	TesseraConnection *connection = tessera_participant(routing, node_id, &needs);
	TesseraCommand *commands = palloc0(sizeof(TesseraCommand) * 2);
	const char **values = palloc(sizeof(char *) * 3);

	values[0] = tessera_uuid_text(&f->seed);
	values[1] = psprintf("%d", f->home_found);
	values[2] = psprintf("%d", tessera_ddl_attempt_timeout());
	commands[0].sql = tessera_call_text(&tessera_call_specs[TESSERA_CALL_DDL_BEGIN], tessera_connection_protocol(connection), &commands[0].nparams);
	commands[0].values = values;
	commands[1].sql = sql;
	tessera_connection_queue(connection, &commands[0]);
	tessera_connection_queue(connection, &commands[1]);
	tessera_connection_sync(connection);
	MemoryContextSwitchTo(before);
	tessera_connection_finish(connection, &commands[1]);
	tessera_connection_check(connection, &commands[0]);
	tessera_connection_check(connection, &commands[1]);
}

/* nulls: NULL: there are none. */
static int
setting_texts(const char *array, Datum **texts, bool **nulls)
{
	int			nest = tessera_fixed_settings_push(TESSERA_FIXED_READING);
	Datum		value = OidFunctionCall3(F_ARRAY_IN, CStringGetDatum(array), ObjectIdGetDatum(TEXTOID), Int32GetDatum(-1));
	int			n;

	AtEOXact_GUC(true, nest);
	deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false, TYPALIGN_INT, texts, nulls, &n);
	return n;
}

/* The value's place, or -1. */
static int
find_setting(Datum name, Datum *names, int n)
{
	for (int i = 0; i < n; i++)
		if (strcmp(TextDatumGetCString(names[i]), TextDatumGetCString(name)) == 0)
			return i;
	return -1;
}

/* A setting as it was, by the rights of who had set it: what is a user's does not become the server's. */
static void
set_back(const char *name, const char *value, const char *setter)
{
	if (setter == NULL)
		tessera_ddl_set_here(name, value);
	else
		(void) set_config_option_ext(name, value, PGC_USERSET, PGC_S_SESSION, get_role_oid(setter, false), GUC_ACTION_SAVE, true, 0, false);
}

/* Until the current nest level of settings ends, they are those that the statement began with. */
static void
restore_settings(const FanOut *f)
{
	TesseraMirroredSettings now;
	Datum	   *names,
			   *values,
			   *old_names,
			   *old_values,
			   *setters;
	bool	   *by_all_rights;
	int			n,
				nold;

	tessera_mirror_collect(&now);
	if (strcmp(now.names, f->settings.names) == 0 && strcmp(now.values, f->settings.values) == 0)
		return;
	n = setting_texts(now.names, &names, NULL);
	(void) setting_texts(now.values, &values, NULL);
	nold = setting_texts(f->settings.names, &old_names, NULL);
	(void) setting_texts(f->settings.values, &old_values, NULL);
	(void) setting_texts(f->settings.setters, &setters, &by_all_rights);
	for (int i = 0; i < n; i++)
		if (find_setting(names[i], old_names, nold) < 0)
			tessera_ddl_set_here(TextDatumGetCString(names[i]), NULL);
	for (int i = 0; i < nold; i++)
	{
		int			place = find_setting(old_names[i], names, n);

		if (place < 0 || strcmp(TextDatumGetCString(values[place]), TextDatumGetCString(old_values[i])) != 0)
			set_back(TextDatumGetCString(old_names[i]), TextDatumGetCString(old_values[i]),
					 by_all_rights[i] ? NULL : TextDatumGetCString(setters[i]));
	}
}

/* As whose statement it is: his code and what he may run may run, where it is carried out on the others; here it is only sent. */
static void
send_to_others(FanOut *f)
{
	const TesseraRouting *routing = tessera_routing();
	char	   *sql;
	int			level = NewGUCNestLevel();
	TesseraActing before;

	tessera_act_as(&before, f->user, f->security);
	restore_settings(f);
	tessera_ddl_set_here("client_min_messages", "error");	/* this node has said it all */
	if (IsA(f->utility->statement->utilityStmt, CreateFunctionStmt))
		tessera_ddl_set_here("check_function_bodies", "off");	/* and checked, where the session's temporary tables are */
	sql = MemoryContextStrdup(TopTransactionContext, tessera_statement_text(f->utility));
	/* a text that was made here is by the current settings, which go along */
	if (!tessera_is_unbuilt_index(f->utility->statement->utilityStmt))
		tessera_utility_set_lexer(f->utility, sql);
	f->sent = true;
	f->sent_in = GetCurrentSubTransactionId();
	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;

		CHECK_FOR_INTERRUPTS();
		if (node_id == routing->self)
			continue;
		tessera_injection("ddl_send");
		send_to_node(f, routing, node_id, sql);
	}
	AtEOXact_GUC(true, level);
	tessera_act_end(&before);
}

void
tessera_fan_out_pending(void)
{
	List	   *pending = NIL;
	ListCell   *cell;

	for (FanOut *f = current; f != NULL; f = f->outer)
		if (!f->sent)
			pending = lcons(f, pending);
	foreach(cell, pending)
		send_to_others(lfirst(cell));
}

void
tessera_fan_out_settle_tables(void)
{
	tessera_fan_out_pending();
	if (current != NULL)
		tessera_track_write_tables();
}

void
tessera_fan_out_subtransaction_committed(SubTransactionId mine, SubTransactionId parent)
{
	for (FanOut *f = current; f != NULL; f = f->outer)
		if (f->sent && f->sent_in == mine)
			f->sent_in = parent;
}

void
tessera_fan_out_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent)
{
	for (FanOut *f = current; f != NULL; f = f->outer)
		if (f->sent && f->sent_in == mine)
			f->sent = false;
}

/* ---- one statement ---- */

static bool
is_temporary(TesseraTrack *track)
{
	ListCell   *cell;

	foreach(cell, track->created)
		if (get_rel_persistence(lfirst_oid(cell)) != RELPERSISTENCE_TEMP)
			return false;
	return track->created != NIL;
}

/* relids: those that are referenced, too. */
static void
add_placed(List **keys, List **relids, const TesseraRouting *routing, Oid relid)
{
	const TesseraTable *table = OidIsValid(relid) ? tessera_routing_table(routing, relid) : NULL;

	if (table == NULL || table->group >= 0)
		return;
	*keys = lappend(*keys, psprintf("placed %s", tessera_qualified_name(relid)));
	*relids = list_append_unique_oid(*relids, relid);
}

/* Of a constraint, or of all those of a column. */
static void
add_referenced(List **keys, List **relids, const TesseraRouting *routing, Node *node)
{
	ListCell   *cell;

	if (node == NULL)
		return;
	if (IsA(node, Constraint) && ((Constraint *) node)->pktable != NULL)
		add_placed(keys, relids, routing, RangeVarGetRelid(((Constraint *) node)->pktable, NoLock, true));
	else if (IsA(node, ColumnDef))
		foreach(cell, ((ColumnDef *) node)->constraints)
			add_referenced(keys, relids, routing, lfirst(cell));
}

/*
 * Names to lock of tables that are placed by this node's image, the referenced ones of foreign keys included, which are added to *relids. The config
 * node checks them by its own rows: one may have been sharded meanwhile.
 */
static List *
placed_keys(FanOut *f, Node *statement, List **relids)
{
	List	   *keys = NIL;
	ListCell   *cell;

	foreach(cell, f->named->relids)
		add_placed(&keys, relids, f->routing, lfirst_oid(cell));
	if (IsA(statement, CreateStmt))
		foreach(cell, ((CreateStmt *) statement)->tableElts)
			add_referenced(&keys, relids, f->routing, lfirst(cell));
	else if (IsA(statement, AlterTableStmt))
		foreach(cell, ((AlterTableStmt *) statement)->cmds)
		{
			AlterTableCmd *command = lfirst_node(AlterTableCmd, cell);

			add_referenced(&keys, relids, f->routing, command->def);
			if (command->subtype == AT_AttachPartition)
				add_placed(&keys, relids, f->routing, RangeVarGetRelid(castNode(PartitionCmd, command->def)->name, NoLock, true));
		}
	return keys;
}

/*
 * The groups are locked: from here on no schema moves. One may have moved since this node's last refresh: then where its tables live, which foreign
 * keys and the like go by, is fetched now.
 */
static const TesseraRouting *
know_schemas(const TesseraRouting *routing, List *groups)
{
	ListCell   *cell;

	foreach(cell, groups)
	{
		const TesseraGroup *group = tessera_routing_group_by_id(routing, lfirst(cell));

		if (group == NULL || !group->of_schema)
			continue;
		if (!tessera_routing_refresh(Max(tessera_ddl_lock_timeout, REFRESH_MS)))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("the config node does not say where the schema's tables live"),
					 errhint("See tessera.refresh_status().")));
		break;
	}
	return tessera_routing();
}

/* Who holds the tables has to end first: else the statement might fail, and have ended migrations for nothing. */
static void
await_holders(void *arg)
{
	FanOut	   *f = arg;

	tessera_ddl_await_holders(f->routing, tessera_ddl_table_locks(f->utility->statement->utilityStmt, f->routing), false);
}

static void
attempt_statement(void *arg)
{
	FanOut	   *f = arg;
	Node	   *statement = f->utility->statement->utilityStmt;
	TesseraTrack *track;
	List	   *relids;
	List	   *keys;
	List	   *groups;
	List	   *sequences;
	char	   *by = tessera_ddl_by(f->utility, f->named);

	f->sent = false;
	f->routing = tessera_routing();	/* newer than the last attempt's, perhaps */
	relids = list_copy(f->named->relids);
	keys = placed_keys(f, statement, &relids);
	groups = tessera_ddl_groups(f->routing, relids, f->named->namespaces);
	if (!IsA(statement, LockStmt))
	{
		tessera_ddl_lock(f->routing, list_concat(keys, f->named->keys), groups, by, await_holders, f);
		f->routing = know_schemas(f->routing, groups);
	}
	tessera_rules_before(statement, f->routing);
	tessera_ddl_lock_tables(f->routing, tessera_ddl_table_locks(statement, f->routing), false);
	f->home_found = f->home;
	sequences = tessera_sequences_before(statement, f->routing);
	track = run_tracked(f->utility, f->routing, f->named->relids, &f->seed, f->home, true);
	f->home_found = track->home;
	if (IsA(statement, ViewStmt) && is_temporary(track))
		return;					/* a view of a temporary table */
	groups = other_groups(track->groups, groups);
	if (groups != NIL)
		tessera_ddl_lock(f->routing, NIL, groups, by, NULL, NULL);
	if (!f->sent)
		send_to_others(f);
	tessera_sequences_after(sequences);
}

void
tessera_fan_out(TesseraUtility *utility, const TesseraRouting *routing, TesseraStatementObjects *named)
{
	Node	   *statement = utility->statement->utilityStmt;
	FanOut		f = {.utility = utility, .routing = routing, .named = named, .outer = current};

	if (named->grants_nothing)
	{
		tessera_utility_run(utility);
		return;
	}
	tessera_ddl_check_rights(statement, named);
	tessera_fan_out_pending();
	GetUserIdAndSecContext(&f.user, &f.security);
	tessera_mirror_collect(&f.settings);
	if (!pg_strong_random(f.seed.data, UUID_LEN))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not get random bytes")));
	f.home = needs_home(statement) ? choose_home(routing) : 0;
	current = &f;
	PG_TRY();
	{
		tessera_ddl_attempts(attempt_statement, &f, !IsA(statement, LockStmt) ? TESSERA_PATIENCE_DDL :
							 ((LockStmt *) statement)->nowait ? TESSERA_PATIENCE_NONE : TESSERA_PATIENCE_LOCK);
	}
	PG_FINALLY();
	{
		current = f.outer;
	}
	PG_END_TRY();
}

/* ---- on a node that is sent a statement ---- */

/* What the next statement's catalog rows derive from */
void
tessera_serve_ddl_begin(const TesseraDdlBeginArgs *args)
{
	announced.set = true;
	announced.seed = *args->seed;
	announced.home = args->home;
	announced.lock_timeout = args->lock_timeout;
}

void
tessera_fan_out_receive(TesseraUtility *utility, const TesseraRouting *routing)
{
	Announced	now = announced;
	TesseraUtility copy = *utility;
	TesseraStatementObjects named = {0};
	char		timeout[16];
	int			level;

	announced.set = false;
	if (!now.set)
	{
		tessera_utility_run(utility);
		return;
	}
	copy.statement = tessera_for_this_database(utility->statement);
	tessera_statement_objects(copy.statement->utilityStmt, routing, &named);
	snprintf(timeout, sizeof(timeout), "%d", now.lock_timeout);
	level = NewGUCNestLevel();
	tessera_ddl_set_here("lock_timeout", timeout);
	(void) run_tracked(&copy, routing, named.relids, &now.seed, now.home, false);
	AtEOXact_GUC(true, level);
}
