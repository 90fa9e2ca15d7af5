/*
 * background.h
 *	  What the background processes of migrations share: short transactions, and what they know of the cluster.
 */
#ifndef TESSERA_BACKGROUND_H
#define TESSERA_BACKGROUND_H

#include "postgres.h"
#include "datatype/timestamp.h"
#include "utils/uuid.h"

#include "routing/routing.h"

/*
 * A short transaction of its own, with an active snapshot; its commit is flushed. It allocates in the transaction's memory; after the commit the
 * context of before is current again.
 */
extern void tessera_background_begin(void);
extern void tessera_background_commit(void);

/* The current transaction's commit need not be flushed at once: a later one that is flushed covers it. */
extern void tessera_background_commit_lazily(void);

/*
 * One of several steps that do not depend on each other: returns what it returns; false after an error, which is logged, and the transaction that it
 * was in has ended. Only the end of this process goes on as an error. Outside a transaction.
 */
extern bool tessera_background_try(bool (*step) (void *arg), void *arg);

/*
 * Routing image in which the group is known: refreshes once if it is not, so not where locks are held. ERROR 55000 if it stays unknown. In a
 * transaction.
 */
extern const TesseraRouting *tessera_background_group(const pg_uuid_t *group_id, const TesseraGroup **group);

/* The same without a refresh: for callers that hold locks. */
extern const TesseraRouting *tessera_background_known_group(const pg_uuid_t *group_id, const TesseraGroup **group);

/* From now on this process shows whose answer it waits for in its migration's slot (stat_progress_migration.waiting_for). */
extern void tessera_background_show_calls(void);

/*
 * The highest config term that this node has seen: a config node of a lower one refuses a call. In the current transaction if there is one, else in a
 * short one.
 */
extern int64 tessera_background_term(void);

/*
 * Fetches what changed on the config node, outside a transaction; does not wait long, and is content with failure: statements refresh by themselves.
 */
extern void tessera_background_refresh(void);

/* ERROR 55000 unless this server has the incarnation with which it was registered for a migration. Outside a transaction. */
extern void tessera_background_require_incarnation(int32 registered);

/* Microseconds of a monotonic clock, for differences: a gate must not stay closed because the wall clock was set back. */
extern TimestampTz tessera_now(void);

/*
 * Where this process shows what it is about, so that others can read it in views. Set by the process itself when it has such a place (its slot, for a
 * process of a migration), before it calls anything that waits; NULL in all others, where the two functions below do nothing.
 */
typedef struct TesseraProcessDisplay
{
	void		(*waiting) (const char *what);	/* NULL: it waits for nothing */
	bool		(*shows_waiting) (void);
	void		(*memory) (void);	/* how much memory it has now */
} TesseraProcessDisplay;

extern const TesseraProcessDisplay *tessera_process_display;

/* Shows what this process waits for; NULL: nothing. The text is copied. */
extern void tessera_background_waiting(const char *what);

/* Shows how much memory this process has now. */
extern void tessera_background_note_memory(void);

/* Sleeps until the latch is set or ms have passed; takes in interrupts and a reload of the configuration. */
extern void tessera_background_sleep(long ms);

/* Takes in interrupts and a reload of the configuration. */
extern void tessera_background_handle_interrupts(void);

#endif							/* TESSERA_BACKGROUND_H */
