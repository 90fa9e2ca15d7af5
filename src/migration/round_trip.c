/*
 * round_trip.c
 *	  What the network costs a critical section: measured before the gate is closed.
 *
 * In a critical section these wait for each other: what is left goes to the recipient, and is acknowledged (with the comparison of changed rows, if
 * the move is verified); the confirmation is asked for, and comes; the config node decides; the recipient is released. The shortest of the last few
 * round trips is what the network takes, the others have waited for a processor, too: that is for the lag, and for the limit of an attempt.
 *
 * Memory: in the donor's struct. Locks: none.
 */
#include "postgres.h"

#include "migration/donor_private.h"
#include "migration/migration_settings.h"
#include "migration/migration_slot.h"

#define EXCHANGE_TRIPS 2		/* in a critical section */
#define AGAIN_MS 1000			/* measured again so soon */

void
tessera_round_trip_note(TesseraRoundTrips *trips, TimestampTz asked)
{
	trips->ms[trips->n % ROUND_TRIPS] = (tessera_now() - asked) / 1000.0;
	/* the place in the ring stays the same */
	trips->n = trips->n < 2 * ROUND_TRIPS - 1 ? trips->n + 1 : ROUND_TRIPS;
}

/* 0: nothing was measured yet. */
static double
shortest(const TesseraRoundTrips *trips)
{
	double		ms = trips->n > 0 ? trips->ms[0] : 0;

	for (int i = 1; i < Min(trips->n, ROUND_TRIPS); i++)
		ms = Min(ms, trips->ms[i]);
	return ms;
}

double
tessera_donor_latency(const TesseraDonor *donor)
{
	return EXCHANGE_TRIPS * shortest(&donor->exchange) + shortest(&donor->config) + shortest(&donor->recipient);
}

bool
tessera_donor_near_enough(TesseraDonor *donor)
{
	double		latency = tessera_donor_latency(donor);

	if (latency <= tessera_critical_section_budget)
	{
		donor->too_far = 0;
		return true;
	}
	if (++donor->too_far >= tessera_critical_section_attempts)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("the network alone would take longer than tessera.critical_section_budget, in %d attempts", donor->too_far),
				 errdetail("A round trip takes %.1f ms to the config node, %.1f ms to the recipient, %.1f ms over the exchange; the pause would take "
						   "%.1f ms.", shortest(&donor->config), shortest(&donor->recipient), shortest(&donor->exchange), latency),
				 errhint("Raise tessera.critical_section_budget.")));
	donor->next_attempt = TimestampTzPlusMilliseconds(tessera_now(), AGAIN_MS);
	tessera_migration_slot_waiting(psprintf("a nearer network: the pause would take %.0f ms, above tessera.critical_section_budget", latency));
	return false;
}
