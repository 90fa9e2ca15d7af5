/*
 * acting_as.c
 *	  Acting as somebody else; see acting_as.h.
 *
 * Memory: nothing is kept; who it was before is with the caller.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"

#include "common/acting_as.h"

void
tessera_act_as(TesseraActing *before, Oid user, int security)
{
	GetUserIdAndSecContext(&before->user, &before->security);
	SetUserIdAndSecContext(user, security);
}

/* The flags that hold already stay: what is restricted remains so. */
static void
act_with(TesseraActing *before, Oid user, int flag)
{
	GetUserIdAndSecContext(&before->user, &before->security);
	SetUserIdAndSecContext(user, before->security | flag);
}

void
tessera_act_as_owner(TesseraActing *before, Oid owner)
{
	act_with(before, owner, SECURITY_RESTRICTED_OPERATION);
}

void
tessera_act_as_user(TesseraActing *before, Oid user)
{
	act_with(before, user, SECURITY_LOCAL_USERID_CHANGE);
}

void
tessera_act_as_cluster(TesseraActing *before)
{
	act_with(before, BOOTSTRAP_SUPERUSERID, SECURITY_LOCAL_USERID_CHANGE);
}

void
tessera_act_end(const TesseraActing *before)
{
	SetUserIdAndSecContext(before->user, before->security);
}

void
tessera_act_from_now_on(Oid user, int security)
{
	SetUserIdAndSecContext(user, security);
}

void
tessera_act_in_session_of(Oid user)
{
	SetSessionAuthorization(user, superuser_arg(user));
}
