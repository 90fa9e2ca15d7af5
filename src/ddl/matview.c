/*
 * matview.c
 *	  Materialized views over tables of the cluster: a placed table whose rows REFRESH computes.
 *
 * Every node has the view; the shard of its schema has the rows. CREATE ... WITH DATA is CREATE ... WITH NO DATA on every node, then REFRESH. REFRESH
 * runs the view's query here, as its owner, into a staging table that is placed on the same shard, then runs on every node: the view's shard fills it
 * from the staging table, through core's own REFRESH with another query (tessera_refresh_query), the others do nothing. Then the staging table goes.
 * All of it is one transaction.
 *
 * CONCURRENTLY is the same, given on the view's shard: readers go on, because the staging table is none of theirs, and core's REFRESH compares the
 * rows and changes those that differ, under an EXCLUSIVE lock there. It compares by statements of its own, which are about the rows of that node
 * (tessera_refresh_plans_locally), and by temporary tables, with which a transaction cannot be prepared (doc/design.md#unpreparable).
 *
 * On nodes without the rows the view is marked as populated, so that scans of it are planned there; its shard checks whether it really is.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/matview.h"
#include "miscadmin.h"
#include "parser/scansup.h"
#include "rewrite/rewriteHandler.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "common/acting_as.h"
#include "common/query_text.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "ddl/ddl.h"

/* Set while core's REFRESH runs on the view's shard; compared with the text, since an event trigger may plan statements meanwhile. */
typedef struct Refresh
{
	Oid			staging;		/* what it reads instead of the view's query */
	const char *text;			/* of the statement */
	const char *merged;			/* CONCURRENTLY: qualified name of the view, with whose rows core compares the new ones; else NULL */
} Refresh;

static Refresh refresh = {InvalidOid, NULL, NULL};

static char *
staging_name(const char *view)
{
	char	   *name = psprintf("tessera_refresh_%s", view);

	truncate_identifier(name, strlen(name), false);
	return name;
}

static const TesseraTable *
cluster_view(const TesseraRouting *routing, RangeVar *relation)
{
	Oid			relid = RangeVarGetRelid(relation, NoLock, true);

	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_MATVIEW)
		return NULL;
	return tessera_routing_table(routing, relid);
}

/* ---- CREATE ---- */

void
tessera_create_materialized_view(CreateTableAsStmt *statement, const char *schema)
{
	char	   *name = pstrdup(tessera_quote_qualified(schema, statement->into->rel->relname));
	StringInfoData text;
	ListCell   *cell;

	initStringInfo(&text);
	appendStringInfo(&text, "CREATE MATERIALIZED VIEW %s%s", statement->if_not_exists ? "IF NOT EXISTS " : "", name);
	foreach(cell, statement->into->colNames)
		appendStringInfo(&text, "%s%s%s", foreach_current_index(cell) == 0 ? " (" : ", ", tessera_quote(strVal(lfirst(cell))),
						 lnext(statement->into->colNames, cell) ? "" : ")");
	tessera_append_into_options(&text, statement->into);
	appendStringInfo(&text, " AS %s WITH NO DATA", tessera_query_text(copyObject(castNode(Query, statement->query))));
	tessera_run_utility_text(text.data);
	tessera_run_utility_text(psprintf("REFRESH MATERIALIZED VIEW %s", name));
}

/* ---- REFRESH, where it was given ---- */

/* The view's query, to be planned: its locks are taken. */
static Query *
view_query(Oid relid)
{
	Relation	view = table_open(relid, AccessShareLock);
	Query	   *query = copyObject(linitial_node(Query, view->rd_rules->rules[0]->actions));

	table_close(view, NoLock);
	AcquireRewriteLocks(query, true, false);
	return query;
}

/* As core's REFRESH: the query's functions are the owner's choice, and run as him here and on shards. */
static void
fill_staging(Oid view, Oid table, Oid owner, TesseraUtility *utility)
{
	TesseraActing before;
	int			level = NewGUCNestLevel();

	tessera_act_as_owner(&before, owner);
	(void) tessera_insert_rows(table, view_query(view), utility);
	AtEOXact_GUC(false, level);
	tessera_act_end(&before);
}

static Oid
owner_of(Oid relid)
{
	Relation	rel = table_open(relid, AccessShareLock);
	Oid			owner = rel->rd_rel->relowner;

	table_close(rel, NoLock);
	return owner;
}

/*
 * The placement record tells, where the schema has one: the chunks here may be older than a move that has ended. The statement holds off another one.
 */
static bool
has_rows_here(const TesseraRouting *routing, const TesseraTable *table)
{
	const TesseraGroup *group = tessera_table_placement_group(routing, table);
	const TesseraPlacement *placement;
	bool		newest;

	if (group == NULL)
		return table->node_id == routing->self;
	placement = tessera_placement_as_of(routing, group, InvalidSnapshot, &newest);
	return placement != NULL && placement->nowned > 0;
}

/*
 * Core's REFRESH CONCURRENTLY makes temporary tables, so the view's shard cannot be prepared; nor can this node, which makes the staging table. So
 * they must be the same.
 */
static void
require_rows_here(const TesseraRouting *routing, const TesseraTable *table)
{
	const TesseraNode *home = tessera_routing_node(routing, table->node_id);

	if (!has_rows_here(routing, table))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("REFRESH MATERIALIZED VIEW CONCURRENTLY runs only on the node that has the rows of the view"),
				 errhint("Run it on node \"%s\", or use REFRESH MATERIALIZED VIEW.", home != NULL ? NameStr(home->name) : "?")));
}

bool
tessera_refresh_begin(TesseraUtility *utility, const TesseraRouting *routing)
{
	RefreshMatViewStmt *statement = castNode(RefreshMatViewStmt, utility->statement->utilityStmt);
	const TesseraTable *table = cluster_view(routing, statement->relation);
	Oid			view;
	Oid			owner;
	const char *schema;
	char	   *name;

	if (table == NULL)
		return false;
	view = table->relid;
	if (!tessera_owns_relation(view, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_MATVIEW, get_rel_name(view));
	if (statement->skipData)
		return true;
	if (statement->concurrent)
		require_rows_here(routing, table);
	owner = owner_of(view);
	schema = get_namespace_name(get_rel_namespace(view));
	name = staging_name(get_rel_name(view));
	tessera_run_utility_text(psprintf("CREATE UNLOGGED TABLE %s (LIKE %s)", tessera_quote_qualified(schema, name),
									  pstrdup(tessera_quote_qualified(schema, get_rel_name(view)))));
	if (owner != GetUserId())
		tessera_run_utility_text(psprintf("ALTER TABLE %s OWNER TO %s", tessera_quote_qualified(schema, name),
										  tessera_quote(GetUserNameFromId(owner, false))));
	fill_staging(view, get_relname_relid(name, get_rel_namespace(view)), owner, utility);
	CommandCounterIncrement();
	return true;
}

void
tessera_refresh_end(TesseraUtility *utility)
{
	RefreshMatViewStmt *statement = castNode(RefreshMatViewStmt, utility->statement->utilityStmt);
	Oid			view = RangeVarGetRelid(statement->relation, NoLock, false);

	if (!statement->skipData)
		tessera_run_utility_text(psprintf("DROP TABLE %s", tessera_quote_qualified(get_namespace_name(get_rel_namespace(view)),
																						staging_name(get_rel_name(view)))));
}

/* ---- REFRESH, on every node ---- */

/* True if there is nothing to do on this node. */
static bool
is_elsewhere(TesseraUtility *utility)
{
	RefreshMatViewStmt *statement = (RefreshMatViewStmt *) utility->statement->utilityStmt;
	const TesseraRouting *routing;
	const TesseraTable *table;

	if (!IsA(statement, RefreshMatViewStmt) || (routing = tessera_routing()) == NULL || (table = cluster_view(routing, statement->relation)) == NULL)
		return false;
	if (!has_rows_here(routing, table))
		return true;
	if (!statement->skipData)
	{
		refresh.staging = get_relname_relid(staging_name(get_rel_name(table->relid)), get_rel_namespace(table->relid));
		refresh.text = utility->text;
		refresh.merged = statement->concurrent ? tessera_qualified_name(table->relid) : NULL;
	}
	return false;
}

void
tessera_refresh_or_run(TesseraUtility *utility, void (*run) (TesseraUtility *utility))
{
	Refresh		before = refresh;

	refresh.staging = InvalidOid;
	refresh.merged = NULL;
	PG_TRY();
	{
		if (!is_elsewhere(utility))
			run(utility);
	}
	PG_FINALLY();
	{
		refresh = before;
	}
	PG_END_TRY();
}

/*
 * By their texts, which are core's. Should a user's function, an operator's say, give the same text meanwhile: all rows of the view are here, so it
 * gets what it would get anyway.
 */
bool
tessera_refresh_plans_locally(const char *source)
{
	const char *view = refresh.merged;

	if (view == NULL || source == NULL)
		return false;
	return strncmp(source, "INSERT INTO pg_temp", 19) == 0 ? strstr(source, psprintf(" AS newdata FROM %s mv FULL JOIN pg_temp", view)) != NULL :
		strstr(source, psprintf("DELETE FROM %s mv WHERE ctid OPERATOR(pg_catalog.=) ANY (SELECT diff.tid FROM pg_temp", view)) == source ||
		strstr(source, psprintf("INSERT INTO %s SELECT (diff.newdata).* FROM pg_temp", view)) == source;
}

Query *
tessera_refresh_query(const char *source)
{
	Oid			relid = refresh.staging;
	RawStmt    *raw;
	char	   *text;

	if (!OidIsValid(relid) || source != refresh.text)
		return NULL;
	refresh.staging = InvalidOid;
	text = psprintf("SELECT * FROM %s", tessera_qualified_name(relid));
	raw = linitial_node(RawStmt, pg_parse_query(text));
	return linitial_node(Query, pg_analyze_and_rewrite_fixedparams(raw, text, NULL, 0, NULL));
}
