/*
 * table_locks.c
 *	  Which tables a DDL statement will lock against writers, and how: those are locked on all nodes before it runs (attempts.h).
 *
 * What is not found here (children that ALTER TABLE goes on to, tables that CASCADE reaches) is locked by the statement itself, node by node. Only
 * tables that the user could lock by the statement are locked. Names are looked up without locks: if one changes hands before it is locked, the wrong
 * table is locked for the time of a transaction.
 */
#include "postgres.h"

#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

#include "common/version_compat.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"

typedef struct Collection
{
	const TesseraRouting *routing;
	List	   *locks;
} Collection;

/* rights: any of them will do; 0: the owner's. */
static void
add_tree(Collection *c, RangeVar *name, LOCKMODE mode, AclMode rights, bool with_children)
{
	Oid			relid = name == NULL ? InvalidOid : RangeVarGetRelid(name, NoLock, true);
	char		relkind = OidIsValid(relid) ? get_rel_relkind(relid) : 0;
	ListCell   *cell;

	if (relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX)
		relid = IndexGetRelation(relid, true);
	if (!OidIsValid(relid) || !OidIsValid(tessera_cluster_root(c->routing, relid)))
		return;
	if (rights == 0 ? !tessera_owns_relation(relid, GetUserId()) : pg_class_aclmask(relid, GetUserId(), rights, ACLMASK_ANY) == 0)
		return;
	/* the parent first, children by OID, as core does */
	foreach(cell, with_children && name->inh && has_subclass(relid) ? find_all_inheritors(relid, NoLock, NULL) : list_make1_oid(relid))
	{
		TesseraTableLock *lock = palloc(sizeof(TesseraTableLock));

		lock->relid = lfirst_oid(cell);
		lock->mode = mode;
		c->locks = lappend(c->locks, lock);
	}
}

static void
add_table(Collection *c, RangeVar *name, LOCKMODE mode, AclMode rights)
{
	add_tree(c, name, mode, rights, false);
}

static void
add_tables(Collection *c, List *names, LOCKMODE mode, AclMode rights)
{
	ListCell   *cell;

	foreach(cell, names)
		add_tree(c, lfirst_node(RangeVar, cell), mode, rights, true);
}

/* Of a foreign key, or of all those of a column. */
static void
add_referenced(Collection *c, Node *node)
{
	ListCell   *cell;

	if (node == NULL)
		return;
	if (IsA(node, Constraint))
		add_table(c, ((Constraint *) node)->pktable, ShareRowExclusiveLock, ACL_REFERENCES);
	else if (IsA(node, ColumnDef))
		foreach(cell, ((ColumnDef *) node)->constraints)
			add_referenced(c, lfirst(cell));
}

static void
add_alter_table(Collection *c, AlterTableStmt *statement)
{
	LOCKMODE	mode = AlterTableGetLockLevel(statement->cmds);
	ListCell   *cell;

	if (statement->objtype != OBJECT_TABLE && statement->objtype != OBJECT_MATVIEW)
		return;
	if (tessera_detaches_concurrently((Node *) statement))	/* it runs without CONCURRENTLY */
		mode = AccessExclusiveLock;
	if (mode > ShareUpdateExclusiveLock)
		add_table(c, statement->relation, mode, 0);
	foreach(cell, statement->cmds)
		add_referenced(c, lfirst_node(AlterTableCmd, cell)->def);
}

static void
add_dropped(Collection *c, DropStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->objects)
	{
		List	   *names = IsA(lfirst(cell), List) ? list_copy(lfirst(cell)) : NIL;

		switch (statement->removeType)
		{
			case OBJECT_TRIGGER:
			case OBJECT_RULE:
			case OBJECT_POLICY:
				names = list_truncate(names, list_length(names) - 1);
				break;
			case OBJECT_TABLE:
			case OBJECT_MATVIEW:
			case OBJECT_INDEX:
				break;
			default:
				names = NIL;
				break;
		}
		if (names != NIL && list_length(names) <= 3)
			add_table(c, makeRangeVarFromNameList(names), AccessExclusiveLock, 0);
	}
}

static AclMode
rights_to_lock(LOCKMODE mode)
{
	if (mode == AccessShareLock)
		return ACL_SELECT;
	if (mode == RowExclusiveLock)
		return ACL_INSERT | ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE;
	return ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE;
}

List *
tessera_ddl_table_locks(Node *statement, const TesseraRouting *routing)
{
	Collection	c = {routing};
	ListCell   *cell;

	switch (nodeTag(statement))
	{
		case T_LockStmt:
			add_tables(&c, ((LockStmt *) statement)->relations, ((LockStmt *) statement)->mode, rights_to_lock(((LockStmt *) statement)->mode));
			break;
		case T_TruncateStmt:
			add_tables(&c, ((TruncateStmt *) statement)->relations, AccessExclusiveLock, ACL_TRUNCATE);
			break;
		case T_IndexStmt:
			add_tree(&c, ((IndexStmt *) statement)->relation, ShareLock, 0, true);
			break;
		case T_AlterTableStmt:
			add_alter_table(&c, (AlterTableStmt *) statement);
			break;
		case T_CreateStmt:
			foreach(cell, ((CreateStmt *) statement)->tableElts)
				add_referenced(&c, lfirst(cell));
			break;
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType == OBJECT_TABLE || ((RenameStmt *) statement)->renameType == OBJECT_MATVIEW ||
				((RenameStmt *) statement)->renameType == OBJECT_COLUMN || ((RenameStmt *) statement)->renameType == OBJECT_TABCONSTRAINT)
				add_table(&c, ((RenameStmt *) statement)->relation, AccessExclusiveLock, 0);
			break;
		case T_AlterObjectSchemaStmt:
			add_table(&c, ((AlterObjectSchemaStmt *) statement)->relation, AccessExclusiveLock, 0);
			break;
		case T_CreateTrigStmt:
			add_table(&c, ((CreateTrigStmt *) statement)->relation, ShareRowExclusiveLock, ACL_TRIGGER);
			break;
		case T_CreatePolicyStmt:
			add_table(&c, ((CreatePolicyStmt *) statement)->table, AccessExclusiveLock, 0);
			break;
		case T_AlterPolicyStmt:
			add_table(&c, ((AlterPolicyStmt *) statement)->table, AccessExclusiveLock, 0);
			break;
		case T_RuleStmt:
			add_table(&c, ((RuleStmt *) statement)->relation, AccessExclusiveLock, 0);
			break;
		case T_DropStmt:
			add_dropped(&c, (DropStmt *) statement);
			break;
		default:
			break;
	}
	return c.locks;
}
