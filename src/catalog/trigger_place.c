/*
 * trigger_place.c
 *	  Where a user's trigger fires; see trigger_place.h and doc/design.md#triggers.
 *
 * On the shard of its row is where it costs nothing, and where it sees neither the client's session nor rows of other shards. So it stays there only
 * if its function is known to need neither: a built-in one, or one in PL/pgSQL whose words name no statement of SQL and call only built-in functions
 * that answer alike on every node. A function that says so itself (ALTER FUNCTION ... SET tessera.trigger_place) is believed. A trigger for each
 * statement fires once, so it fires on the router whatever it does, unless its function says otherwise. What is not known fires on the router, too:
 * that is always right, and slower.
 *
 * Memory: places of functions in a hash of the session, which any change of a function empties: a body's words mean what functions there are.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "catalog/cross_table_code.h"
#include "catalog/trigger_place.h"
#include "common/version_compat.h"

typedef enum Place
{
	PLACE_AUTO,
	PLACE_SHARD,
	PLACE_ROUTER
} Place;

static const struct config_enum_entry place_names[] = {
	{"auto", PLACE_AUTO, false}, {"shard", PLACE_SHARD, false}, {"router", PLACE_ROUTER, false}, {NULL, 0, false}
};

#define SETTING "tessera.trigger_place"

typedef struct KnownPlace
{
	Oid			function;		/* key */
	Place		declared;
	bool		harmless;		/* on a shard, of a row */
} KnownPlace;

static HTAB *known = NULL;

/* ---- functions ---- */

/* Words with which a statement begins that acts on the session or on the transaction, or that reads rows by a name of its own. */
static const char *const session_words[] = {
	"set", "reset", "notify", "listen", "unlisten", "load", "discard", "prepare", "deallocate", "open", "fetch", "move", "close", "cursor", "commit",
	"rollback", "savepoint", "with", "checkpoint", "vacuum", "analyze", "cluster", "reindex", "grant", "revoke", "comment", "security", "import",
	"explain", "show", "abort", "start", "release", "reassign", NULL
};

/* Those that begin with pg_, inet_ or txid_ do, but for pg_typeof. */
bool
tessera_tells_of_session(const char *name)
{
	static const char *const prefixes[] = {"pg_", "inet_", "txid_", "has_", "to_reg"};
	size_t		length = strlen(name);

	if (strcmp(name, "pg_typeof") == 0)
		return false;
	for (int i = 0; i < lengthof(prefixes); i++)
		if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
			return true;
	return strcmp(name, "version") == 0 || strcmp(name, "current_query") == 0 || strcmp(name, "row_security_active") == 0 ||
		(length > 4 && strcmp(name + length - 4, "_xml") == 0) || strstr(name, "_to_xml") != NULL;
}

/* True if each function of that name is built in and answers alike on every node. One that is volatile is looked at by its number. */
static bool
call_is_harmless(const char *name)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	bool		harmless = !tessera_tells_of_session(name);

	for (int i = 0; i < list->n_members && harmless; i++)
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		harmless = form->oid < FirstNormalObjectId &&
			(form->provolatile != PROVOLATILE_VOLATILE || tessera_is_random(form->oid) || form->oid == F_CLOCK_TIMESTAMP ||
			 form->oid == F_GEN_RANDOM_UUID);
	}
	ReleaseSysCacheList(list);
	return harmless;
}

/* A TesseraWordTest: words that keep a function from the shard. */
static bool
needs_session(const char *word, bool called)
{
	if (called)
		return !call_is_harmless(word);
	for (int i = 0; session_words[i] != NULL; i++)
		if (pg_strcasecmp(word, session_words[i]) == 0)
			return true;
	return false;
}

/* What the function's own settings say. */
static Place
declared_place(HeapTuple tuple)
{
	bool		isnull;
	Datum		settings = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig, &isnull);
	Datum	   *items;
	int			n;

	if (isnull)
		return PLACE_AUTO;
	deconstruct_array(DatumGetArrayTypeP(settings), TEXTOID, -1, false, TYPALIGN_INT, &items, NULL, &n);
	for (int i = 0; i < n; i++)
	{
		char	   *item = TextDatumGetCString(items[i]);

		if (pg_strncasecmp(item, SETTING "=", strlen(SETTING "=")) != 0)
			continue;
		for (const struct config_enum_entry *entry = place_names; entry->name; entry++)
			if (pg_strcasecmp(item + strlen(SETTING "="), entry->name) == 0)
				return entry->val;
	}
	return PLACE_AUTO;
}

static void
look_up(KnownPlace *place, Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;

	place->declared = PLACE_AUTO;
	place->harmless = false;
	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	place->declared = declared_place(tuple);
	if (function < FirstNormalObjectId)
		place->harmless = true;
	else if (form->prolang != INTERNALlanguageId && form->prolang != ClanguageId)
		place->harmless = !tessera_function_reaches(function, needs_session);
	ReleaseSysCache(tuple);
}

static KnownPlace
place_of(Oid function)
{
	KnownPlace	place = {.function = function};
	KnownPlace *entry;

	if (known == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(KnownPlace), .hcxt = TopMemoryContext};

		known = hash_create("tessera places of triggers", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	entry = hash_search(known, &function, HASH_FIND, NULL);
	if (entry != NULL)
		return *entry;
	/* looking it up may empty the cache */
	look_up(&place, function);
	entry = hash_search(known, &function, HASH_ENTER, NULL);
	*entry = place;
	return place;
}

static void
forget_places(Datum argument, int cache, uint32 hash)
{
	HASH_SEQ_STATUS status;
	KnownPlace *entry;

	if (known == NULL)
		return;
	hash_seq_init(&status, known);
	while ((entry = hash_seq_search(&status)))
		(void) hash_search(known, &entry->function, HASH_REMOVE, NULL);
}

/* ---- triggers of a table ---- */

static bool
fires_for(const Trigger *trigger, CmdType command)
{
	if (trigger->tgisinternal || trigger->tgenabled == TRIGGER_DISABLED)
		return false;
	switch (command)
	{
		case CMD_INSERT:
			return TRIGGER_FOR_INSERT(trigger->tgtype);
		case CMD_UPDATE:
			return TRIGGER_FOR_UPDATE(trigger->tgtype);
		case CMD_DELETE:
			return TRIGGER_FOR_DELETE(trigger->tgtype);
		default:
			return false;
	}
}

static bool
needs_router(const Trigger *trigger)
{
	KnownPlace	place = place_of(trigger->tgfoid);

	if (place.declared != PLACE_AUTO)
		return place.declared == PLACE_ROUTER;
	return !TRIGGER_FOR_ROW(trigger->tgtype) || !place.harmless ||
		(trigger->tgqual != NULL && tessera_condition_reaches(trigger->tgqual));
}

bool
tessera_fires_on_router(Relation rel, CmdType command)
{
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
		if (fires_for(&rel->trigdesc->triggers[i], command) && needs_router(&rel->trigdesc->triggers[i]))
			return true;
	return false;
}

bool
tessera_has_deferrable_trigger(Relation rel, CmdType command)
{
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
		if (fires_for(&rel->trigdesc->triggers[i], command) && rel->trigdesc->triggers[i].tgdeferrable)
			return true;
	return false;
}

void
tessera_trigger_place_init(void)
{
	static int	setting;

	DefineCustomEnumVariable(SETTING, "Where triggers fire whose function is given this setting: on the router, or on the shard of the row.",
							 "Counts only as a setting of a trigger's function (ALTER FUNCTION ... SET).", &setting, PLACE_AUTO, place_names,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	CacheRegisterSyscacheCallback(PROCOID, forget_places, (Datum) 0);
}
