/*
 * injection.h
 *	  Named points in the code at which a test can have an error raised, the process killed, the work paused, or a safeguard left out.
 *
 * Only a build for tests (make TESTS_BUILD=1) has them: in a release the macros are nothing, and there is nothing that could be switched
 * on. In a build for tests they do nothing unless the server was started with tessera.injection_points = on. Then
 * tessera_test.injection_set(name, action) arms a point for this database. The functions are in src/test_support/.
 */
#ifndef TESSERA_INJECTION_H
#define TESSERA_INJECTION_H

#include "postgres.h"

#include "common/build.h"		/* made by the Makefile */

#ifdef TESSERA_TESTS

/* Setting tessera.injection_points. */
extern bool tessera_injection_points;

/*
 * Does what the point is armed with: ERROR 38000, SIGKILL of this process, or a wait until it is cleared (interruptible, ten minutes at most). Not in
 * a critical section nor with a lock held that others need.
 */
extern void tessera_injection_run(const char *name);

/* True if the safeguard of that name is armed with "skip". Tests then leave it out, to see whether the other tests notice. */
extern bool tessera_injection_armed_skip(const char *name);

/* From _PG_init: setting and shared memory. */
extern void tessera_injection_init(void);

/* Is this a server under test? For checks that a release does without. */
#define tessera_under_test() tessera_injection_points

#define tessera_injection(name) \
	do { \
		if (unlikely(tessera_injection_points)) \
			tessera_injection_run(name); \
	} while (0)
#define tessera_injection_skips(name) (unlikely(tessera_injection_points) && tessera_injection_armed_skip(name))

#else
#define tessera_under_test() false
#define tessera_injection(name) ((void) 0)
#define tessera_injection_skips(name) false
#endif

#endif							/* TESSERA_INJECTION_H */
