/*
 * injection.h
 *	  Named points in the code at which a test can have an error raised, the process killed, the work paused, or a safeguard left out.
 *
 * They do nothing unless the server was started with tessera.injection_points = on. Then tessera.injection_set(name, action) arms
 * a point for this database. A point that is off costs one test of a variable; a build with -DTESSERA_NO_INJECTION has none.
 */
#ifndef TESSERA_INJECTION_H
#define TESSERA_INJECTION_H

#include "postgres.h"

/* Setting tessera.injection_points. */
extern bool tessera_injection_points;

/*
 * Does what the point is armed with: ERROR 38000, SIGKILL of this process, or a wait until it is cleared (interruptible, ten minutes at most). Not in
 * a critical section nor with a lock held that others need.
 */
extern void tessera_injection_run(const char *name);

/* True if the safeguard of that name is armed with "skip". Tests then leave it out, to see whether the other tests notice. */
extern bool tessera_injection_armed_skip(const char *name);

#ifdef TESSERA_NO_INJECTION
#define tessera_injection(name) ((void) 0)
#define tessera_injection_skips(name) false
#else
#define tessera_injection(name) \
	do { \
		if (unlikely(tessera_injection_points)) \
			tessera_injection_run(name); \
	} while (0)
#define tessera_injection_skips(name) (unlikely(tessera_injection_points) && tessera_injection_armed_skip(name))
#endif

/* From _PG_init: setting and shared memory. */
extern void tessera_injection_init(void);

#endif							/* TESSERA_INJECTION_H */
