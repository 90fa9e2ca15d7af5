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

bool
tessera_is_admin(Oid user)
{
	return member_of(user, "tessera_admin");
}

void
tessera_require_admin(void)
{
	if (!tessera_is_admin(GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change the cluster"),
				 errhint("Only superusers and members of role tessera_admin can do this.")));
}

bool
tessera_is_internal(Oid user)
{
	return member_of(user, "tessera_internal");
}

bool
tessera_may_read_catalog(void)
{
	return tessera_is_admin(GetUserId()) || tessera_is_internal(GetUserId());
}

void
tessera_require_internal(void)
{
	if (!tessera_is_internal(GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for a function between nodes"),
				 errhint("Only superusers and members of role tessera_internal can open internal connections.")));
}
