/*
 * tap.h
 *	  Just enough of TAP for the unit tests: one line per check, the plan at the end, exit status 1 if a check failed. Each program is one file.
 */
#ifndef TESSERA_TEST_TAP_H
#define TESSERA_TEST_TAP_H

#include <stdbool.h>
#include <stdio.h>

static int	checks_made;
static int	checks_failed;

static bool
check(bool good, const char *name)
{
	checks_made++;
	if (!good)
		checks_failed++;
	printf("%s %d - %s\n", good ? "ok" : "not ok", checks_made, name);
	fflush(stdout);
	return good;
}

static int
finish(void)
{
	printf("1..%d\n", checks_made);
	return checks_failed > 0;
}

#endif							/* TESSERA_TEST_TAP_H */
