/*
 * privilege.c
 *	  Who may change the cluster, who may read its catalog whole, and who counts as another node.
 *
 * Members of tessera_admin own nothing: what they may change they change through functions, which check the membership first and then act with the
 * rights of the catalog's owner (common/spi.h).
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"

#include "common/privilege.h"

static bool
member_of(Oid user, const char *role)
{
	Oid			roleid = get_role_oid(role, true);

	return superuser_arg(user) || (OidIsValid(roleid) && has_privs_of_role(user, roleid));
}

void
tessera_require_admin(void)
{
	if (!member_of(GetUserId(), "tessera_admin"))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change the cluster"),
				 errhint("Only superusers and members of role tessera_admin can do this.")));
}

bool
tessera_may_read_catalog(void)
{
	return member_of(GetUserId(), "tessera_admin") || member_of(GetUserId(), "tessera_internal");
}

void
tessera_require_internal(void)
{
	if (!member_of(GetUserId(), "tessera_internal"))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for a function between nodes"),
				 errhint("Only superusers and members of role tessera_internal can open internal connections.")));
}
