/*
 * acting_as.h
 *	  Acting as somebody else: the only functions that change the current user, its security context or the session's user.
 *
 * Whatever runs between acting and its end does so by the other's rights, so each place that calls one of these says, there or at its function's
 * head, whose code can run meanwhile. No code that a user can write may run as the cluster. Nothing sets session_replication_role: a user's own
 * setting of it is carried to other nodes as any other is (transaction/settings_mirror.h). test/lint/acting.py refuses all of that elsewhere.
 *
 * An error need not be caught for it: the abort of the transaction or subtransaction brings back who it was when that began. Who catches one without
 * such an abort, or must not leave it to the abort, ends in PG_FINALLY.
 */
#ifndef TESSERA_ACTING_AS_H
#define TESSERA_ACTING_AS_H

#include "postgres.h"

/* Who this process was before it acted as somebody else. */
typedef struct TesseraActing
{
	Oid			user;
	int			security;		/* flags of the security context */
} TesseraActing;

/*
 * As the owner of a table or view, in a restricted operation, as core's own maintenance does: code of the owner may run below (index expressions,
 * generated columns).
 */
extern void tessera_act_as_owner(TesseraActing *before, Oid owner);

/*
 * As a user who has asked for it, by his rights alone (SECURITY_LOCAL_USERID_CHANGE: nothing below gets back to the connection's role): code of that
 * user, and what he may run, may run below.
 */
extern void tessera_act_as_user(TesseraActing *before, Oid user);

/* As the cluster (bootstrap superuser): no code that a user can write may run below. */
extern void tessera_act_as_cluster(TesseraActing *before);

/* In exactly this security context, nothing of the one at hand added: for who has kept one, or needs flags that none of the above sets. */
extern void tessera_act_as(TesseraActing *before, Oid user, int security);

/* Whoever it was is it again. */
extern void tessera_act_end(const TesseraActing *before);

/*
 * Without an end, for the shard's side of an internal connection: until the next one; the rollback of a transaction brings back who it was when that
 * began. Code of that user, and what he may run, runs in the statements that follow.
 */
extern void tessera_act_from_now_on(Oid user, int security);

/*
 * The session's user from now on, for the same: what session_user says, and what SET ROLE goes by. It is the current user then, too, and no part of
 * the transaction. The security context must be empty. ERROR 42501 unless the connection's own role is a superuser or that user.
 */
extern void tessera_act_in_session_of(Oid user);

#endif							/* TESSERA_ACTING_AS_H */
