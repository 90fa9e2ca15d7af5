/*
 * disk.c
 *	  A disk that can be full: preloaded into the servers of a chaos run (LD_PRELOAD), it lets no file of a database grow while the file that
 *	  CHAOS_DISK_FULL names is there. What is already on the disk can be overwritten, and WAL has a disk of its own: as on most servers.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int
is_full(void)
{
	const char *file = getenv("CHAOS_DISK_FULL");

	return file != NULL && access(file, F_OK) == 0;
}

/* Would a write up to this offset make a file below base/ grow? */
static int
grows(int fd, off_t end)
{
	char		link[64];
	char		path[4096];
	struct stat status;
	ssize_t		n;

	if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || end <= status.st_size)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return 0;
	path[n] = '\0';
	return strstr(path, "/base/") != NULL;
}

ssize_t
pwrite(int fd, const void *data, size_t size, off_t offset)
{
	static ssize_t (*next) (int, const void *, size_t, off_t);

	if (next == NULL)
		next = (ssize_t (*) (int, const void *, size_t, off_t)) dlsym(RTLD_NEXT, "pwrite");
	if (is_full() && grows(fd, offset + (off_t) size))
	{
		errno = ENOSPC;
		return -1;
	}
	return next(fd, data, size, offset);
}

ssize_t
pwrite64(int fd, const void *data, size_t size, off_t offset)
{
	return pwrite(fd, data, size, offset);
}
