/*
 * reaper.h
 *	  The session reaper: writes down when logical sessions were used last, and ends those that nobody uses any more.
 */
#ifndef TESSERA_REAPER_H
#define TESSERA_REAPER_H

/* One step of the worker (bgworkers/worker_main.c): ms until the next. Outside of a transaction. */
extern long tessera_session_reaper_step(void);

/* From _PG_init: settings. */
extern void tessera_session_reaper_init(void);

#endif							/* TESSERA_REAPER_H */
