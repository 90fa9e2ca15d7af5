/*
 * numbering.h
 *	  What a client has said of its session: which it is, the number of the transaction at hand, and which statement comes next.
 *
 * It is said by settings (tessera.session, tessera.txn_number, tessera.statement_id), but is no setting's value: a rollback does not take it back.
 * Else what was said in a transaction that fails would be forgotten, and the next one run under the number before.
 */
#ifndef TESSERA_NUMBERING_H
#define TESSERA_NUMBERING_H

#include "postgres.h"
#include "utils/uuid.h"

/* tessera.max_sessions_per_role; 0: no limit. tessera.max_recorded_answer, in kB. */
extern int	tessera_max_sessions_per_role;
extern int	tessera_max_recorded_answer;

/* The session that was set; NULL: none. */
extern const pg_uuid_t *tessera_numbered_session(void);

/* The number under which what this process does is to be done once; 0: none, nothing is recorded. */
extern int64 tessera_transaction_number(void);

/*
 * The number, from 0, of the next statement that commits by itself. Taken by the statement that is told it; given back if its transaction fails, as
 * the client repeats it then.
 */
extern int	tessera_statement_number_take(void);

/*
 * Steps at the end of a transaction: the statements' numbers that it has taken stay taken, or do not. whole: it had a record of the whole, so the
 * number is used up, until the client says it again.
 */
extern void tessera_numbering_commit(bool whole);
extern void tessera_numbering_abort(void);

/* True if this connection has committed a transaction block under the number since that was set. */
extern bool tessera_number_is_used_up(void);

/* The connection works for no session any more, and has no number. */
extern void tessera_numbering_clear(void);

/* From _PG_init: settings. */
extern void tessera_numbering_init(void);

#endif							/* TESSERA_NUMBERING_H */
