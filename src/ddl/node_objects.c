/*
 * node_objects.c
 *	  What belongs to one node although it stands beside the cluster's tables: publications and large objects. A user who makes one on a node of a
 *	  cluster gets a WARNING.
 *
 * A publication sends the changes of the rows that lie on its node. FOR ALL TABLES would send the extension's catalog as well, which says what this
 * node owns and must not appear in another database; no table can be taken out of it, so it is made of the tables of all schemas there are.
 *
 * Memory: lists in the current context. Nothing is durable here, nothing shared.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_largeobject.h"
#include "catalog/pg_namespace.h"
#include "nodes/parsenodes.h"
#include "utils/rel.h"

#include "ddl/ddl.h"
#include "routing/routing.h"

static object_access_hook_type previous_access = NULL;

/* ---- publications ---- */

static PublicationObjSpec *
schema_object(const char *schema)
{
	PublicationObjSpec *object = makeNode(PublicationObjSpec);

	object->pubobjtype = PUBLICATIONOBJ_TABLES_IN_SCHEMA;
	object->name = pstrdup(schema);
	object->location = -1;
	return object;
}

/* PublicationObjSpec of each schema that users can have tables in. */
static List *
user_schemas(void)
{
	Relation	rel = table_open(NamespaceRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	List	   *objects = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		const char *name = NameStr(((Form_pg_namespace) GETSTRUCT(tuple))->nspname);

		if (strncmp(name, "pg_", 3) != 0 && strcmp(name, "information_schema") != 0 && strcmp(name, "tessera") != 0)
			objects = lappend(objects, schema_object(name));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return objects;
}

static void
warn_of_rows(const char *publication)
{
	ereport(WARNING,
			(errmsg("publication \"%s\" holds the changes of rows on this node only", publication),
			 errdetail("Rows of the same tables that lie on other nodes of the cluster are not in it. A range that moves arrives as inserted rows at "
					   "one node and leaves as deleted rows at the other."),
			 errhint("Make the publication on every node that holds rows: tessera.shards lists them.")));
}

void
tessera_publication(TesseraUtility *utility)
{
	TesseraUtility copy = *utility;
	CreatePublicationStmt *create;

	if (IsA(utility->statement->utilityStmt, AlterPublicationStmt))
	{
		AlterPublicationStmt *alter = (AlterPublicationStmt *) utility->statement->utilityStmt;

		tessera_utility_run(utility);
		if (alter->pubobjects != NIL && alter->action != AP_DropObjects)
			warn_of_rows(alter->pubname);
		return;
	}
	copy.statement = copyObject(utility->statement);
	create = castNode(CreatePublicationStmt, copy.statement->utilityStmt);
	if (create->for_all_tables)
	{
		create->for_all_tables = false;
		create->pubobjects = user_schemas();
		tessera_utility_run(&copy);
		ereport(WARNING,
				(errmsg("publication \"%s\" is made for the tables of all schemas that exist now, without those of tessera", create->pubname),
				 errhint("Add schemas that are made later by ALTER PUBLICATION ... ADD TABLES IN SCHEMA.")));
	}
	else
		tessera_utility_run(utility);
	warn_of_rows(create->pubname);
}

/* ---- large objects ---- */

/* WARNING at the first large object that a session makes. */
static void
access_hook(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	static bool warned = false;

	if (previous_access)
		previous_access(access, class, object, sub, arg);
	if (access != OAT_POST_CREATE || class != LargeObjectRelationId || warned || !IsTransactionState() || tessera_routing() == NULL)
		return;
	warned = true;
	ereport(WARNING,
			(errmsg("large objects stay on the node where they are made"),
			 errdetail("Other nodes of the cluster do not see large object %u, and backups of other nodes do not hold it.", object),
			 errhint("Keep what every node must see in a column of type bytea.")));
}

void
tessera_node_objects_init(void)
{
	previous_access = object_access_hook;
	object_access_hook = access_hook;
}
