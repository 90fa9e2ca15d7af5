/*
 * cancel.c
 *	  Asking another server to stop what it runs, without being held up by it; see cancel.h.
 *
 * PQcancel blocks until the other postmaster has closed the connection: for ever, if that is stopped or its machine hangs in the wrong way. So a
 * thread of its own does that; no other code waits for it. It is made to be called so (libpq allows it in a signal handler). The thread is simple
 * because of what it may not do: this file does not include the server's headers, so no memory context, error or latch can be reached from here. All
 * signals are blocked in it.
 *
 * Memory: TesseraCancel is malloc'd and shared; `lock` guards its flags; the thread or its maker frees it, whichever is done with it last. A crash
 * leaves nothing. A thread whose server never answers lives as long as the process; there are at most MAX_THREADS at a time, beyond which no request
 * is sent.
 */
#include "transport/cancel.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define MAX_THREADS 16

struct TesseraCancel
{
	PGcancel   *request;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool		done;			/* by the thread */
	bool		left;			/* by the process: the caller no longer waits */
};

static int	threads = 0;		/* changed by __atomic only */

static void
destroy(TesseraCancel *cancel)
{
	PQfreeCancel(cancel->request);
	pthread_cond_destroy(&cancel->changed);
	pthread_mutex_destroy(&cancel->lock);
	free(cancel);
}

static void *
ask(void *arg)
{
	TesseraCancel *cancel = arg;
	char		message[256];
	bool		left;

	(void) PQcancel(cancel->request, message, sizeof(message));	/* if it fails the deadline decides */
	(void) __atomic_sub_fetch(&threads, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&cancel->lock);
	cancel->done = true;
	left = cancel->left;
	pthread_cond_signal(&cancel->changed);
	pthread_mutex_unlock(&cancel->lock);
	if (left)
		destroy(cancel);
	return NULL;
}

static TesseraCancel *
make(PGconn *pg)
{
	TesseraCancel *cancel = calloc(1, sizeof(TesseraCancel));
	pthread_condattr_t clock;

	if (cancel == NULL)
		return NULL;
	cancel->request = PQgetCancel(pg);
	pthread_mutex_init(&cancel->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&cancel->changed, &clock);
	pthread_condattr_destroy(&clock);
	return cancel;
}

/* A detached thread in which no signal is handled. */
static bool
start_thread(TesseraCancel *cancel)
{
	pthread_attr_t attributes;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	before;
	int			error;

	sigfillset(&all);
	if (pthread_attr_init(&attributes) != 0)
		return false;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, &attributes, ask, cancel);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return error == 0;
}

TesseraCancel *
tessera_cancel_start(PGconn *pg)
{
	TesseraCancel *cancel = make(pg);

	if (cancel == NULL)
		return NULL;
	if (cancel->request != NULL)
	{
		if (__atomic_add_fetch(&threads, 1, __ATOMIC_SEQ_CST) <= MAX_THREADS && start_thread(cancel))
			return cancel;
		(void) __atomic_sub_fetch(&threads, 1, __ATOMIC_SEQ_CST);
	}
	destroy(cancel);
	return NULL;
}

bool
tessera_cancel_finish(TesseraCancel *cancel, long timeout_ms)
{
	struct timespec until;
	bool		done;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += (timeout_ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000)
	{
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&cancel->lock);
	while (!cancel->done && pthread_cond_timedwait(&cancel->changed, &cancel->lock, &until) != ETIMEDOUT)
		 /* woken for nothing */ ;
	done = cancel->done;
	cancel->left = true;
	pthread_mutex_unlock(&cancel->lock);
	if (done)
		destroy(cancel);
	return done;
}
