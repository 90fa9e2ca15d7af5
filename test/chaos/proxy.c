/*
 * proxy.c
 *	  The network between the nodes of a chaos run: each node is reached by the others through ports of this program, which can hold, drop, delay and throttle
 *	  the connections from one node to another.
 *
 * Who connects to a server is read from the startup packet: nodes introduce themselves as application_name "tessera <node>". A connection that has not said so yet,
 * or never does (the first ones of a node that joins), counts as from "?". Connections of the exchange of a migration's rows (a lane) are encrypted: who
 * connects is the node in whose data directory the process works that owns the other end. A lane's ports are the same on both sides of the proxy: the node
 * listens on 127.0.0.1, the proxy on 127.0.0.2.
 *
 * Lines of input, each answered by one line:
 *
 *	  listen <node> <port>          port <number>: where connections to the node that listens on that port are taken
 *	  target <node> <port>          ok: the node is now the server on that port; connections that are open stay
 *	  home <node> <directory>       ok: the node is now the server with that data directory
 *	  lane <node> <first> <last>    ok: connections to these ports of 127.0.0.2 go to the same of 127.0.0.1
 *	  lanes                         lanes <number> <number>: connections of lanes so far, and those of them from nobody known
 *	  link <from> <to> <fault>      ok: from, to: a node, or * for any; fault: ok, hold (nothing passes, nothing is closed), mute (what from says passes, what to
 *                                answers does not), drop (closed, and refused),
 *	                                slow <milliseconds each way>, throttle <bytes per second each way>; it replaces the last one of the same from and to
 *
 * One process, one poll loop. End of input ends it.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NODES 32
#define LISTENERS 256
#define RULES 256
#define PAIRS 1024
#define NAME 64
#define CHUNK 16384
#define QUEUED 262144			/* bytes of one direction; more is not read */
#define PROTOCOL_3 196608
#define SHORT_REQUEST 8			/* bytes of SSLRequest and GSSENCRequest */

typedef enum Fault
{
	FAULT_OK,
	FAULT_HOLD,
	FAULT_MUTE,
	FAULT_DROP,
	FAULT_SLOW,
	FAULT_THROTTLE
} Fault;

static const char *const fault_names[] = {"ok", "hold", "mute", "drop", "slow", "throttle"};

typedef struct Node
{
	char		name[NAME];
	int			port;			/* of the server */
	char		home[PATH_MAX]; /* its data directory */
} Node;

typedef struct Listener
{
	int			fd;
	Node	   *node;
	int			lane;			/* port of a lane; 0: of the server */
} Listener;

typedef struct Rule
{
	char		from[NAME];
	char		to[NAME];
	Fault		fault;
	double		amount;
} Rule;

typedef struct Chunk
{
	struct Chunk *next;
	double		due;
	size_t		size;
	size_t		sent;
	char		data[CHUNK];
} Chunk;

/* What was read from one socket and is to be written to the other. */
typedef struct Direction
{
	Chunk	   *first;
	Chunk	   *last;
	size_t		queued;
	double		not_before;		/* throttle */
	int			ended;			/* the source has closed */
	int			shut;			/* and the sink was told */
} Direction;

typedef struct Pair
{
	int			used;
	int			known;			/* the startup packet was seen */
	char		from[NAME];
	Node	   *to;
	int			fd[2];			/* the client's, the server's */
	Direction	way[2];			/* way[i]: read from fd[i] */
} Pair;

static Node nodes[NODES];
static int	nnodes;
static Listener listeners[LISTENERS];
static int	nlisteners;
static int	lanes_seen;
static int	lanes_unknown;
static Rule rules[RULES];
static int	nrules;
static Pair pairs[PAIRS];
static char input[65536];
static size_t input_size;

static double
now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void
make_nonblocking(int fd)
{
	int			on = 1;

	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* A port of 127.0.0.1, 127.0.0.2, ... */
static struct sockaddr_in
loopback(int number, int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + number - 1);
	return address;
}

/* The rule that names the link most closely: both ends, the one it comes from, the one it goes to, any. */
static const Rule *
rule_of(const Pair *pair)
{
	static const Rule none = {.fault = FAULT_OK};
	const Rule *best = &none;
	int			best_rank = -1;

	for (int i = 0; i < nrules; i++)
	{
		int			from = strcmp(rules[i].from, pair->from) == 0;
		int			to = strcmp(rules[i].to, pair->to->name) == 0;
		int			rank = from * 2 + to;

		if ((from || strcmp(rules[i].from, "*") == 0) && (to || strcmp(rules[i].to, "*") == 0) && rank > best_rank)
		{
			best = &rules[i];
			best_rank = rank;
		}
	}
	return best;
}


/* Pairs */

static void
forget_chunks(Direction *way)
{
	while (way->first != NULL)
	{
		Chunk	   *chunk = way->first;

		way->first = chunk->next;
		free(chunk);
	}
	memset(way, 0, sizeof(Direction));
}

static void
close_pair(Pair *pair, int reset)
{
	struct linger linger = {.l_onoff = 1, .l_linger = 0};

	for (int i = 0; i < 2; i++)
	{
		if (reset)
			setsockopt(pair->fd[i], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		close(pair->fd[i]);
		forget_chunks(&pair->way[i]);
	}
	pair->used = 0;
}

/* Inode of the socket on this machine that is connected from one port to another; 0: none. */
static unsigned long
socket_inode(unsigned from, unsigned to)
{
	FILE	   *table = fopen("/proc/net/tcp", "r");
	char		line[512];
	unsigned long found = 0;

	while (table != NULL && found == 0 && fgets(line, sizeof(line), table) != NULL)
	{
		unsigned	local,
					remote;
		unsigned long inode;

		if (sscanf(line, " %*d: %*x:%x %*x:%x %*x %*x:%*x %*x:%*x %*x %*d %*d %lu", &local, &remote, &inode) == 3 && local == from && remote == to)
			found = inode;
	}
	if (table != NULL)
		fclose(table);
	return found;
}

/* Does the process have the socket open? */
static int
owns_socket(const char *pid, unsigned long inode)
{
	char		wanted[64];
	char		path[PATH_MAX];
	DIR		   *directory;
	struct dirent *entry;
	int			found = 0;

	snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	directory = opendir(path);
	while (directory != NULL && !found && (entry = readdir(directory)) != NULL)
	{
		char		target[64];
		ssize_t		length = readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);

		target[length > 0 ? length : 0] = '\0';
		found = strcmp(target, wanted) == 0;
	}
	if (directory != NULL)
		closedir(directory);
	return found;
}

static Node *
node_at_home(const char *pid)
{
	char		path[64];
	char		home[PATH_MAX];
	ssize_t		length;

	snprintf(path, sizeof(path), "/proc/%.32s/cwd", pid);
	length = readlink(path, home, sizeof(home) - 1);
	home[length > 0 ? length : 0] = '\0';
	for (int i = 0; length > 0 && i < nnodes; i++)
		if (strcmp(nodes[i].home, home) == 0)
			return &nodes[i];
	return NULL;
}

/* The node whose process is at the other end of a connection that came to a port; NULL: nobody known. */
static Node *
node_of_socket(int fd, int port)
{
	struct sockaddr_in address = {0};
	socklen_t	size = sizeof(address);
	unsigned long inode;
	DIR		   *directory;
	struct dirent *entry;
	Node	   *found = NULL;

	if (getpeername(fd, (struct sockaddr *) &address, &size) != 0 || (inode = socket_inode(ntohs(address.sin_port), port)) == 0)
		return NULL;
	directory = opendir("/proc");
	while (directory != NULL && found == NULL && (entry = readdir(directory)) != NULL)
	{
		Node	   *node = isdigit((unsigned char) entry->d_name[0]) ? node_at_home(entry->d_name) : NULL;

		if (node != NULL && owns_socket(entry->d_name, inode))
			found = node;
	}
	if (directory != NULL)
		closedir(directory);
	return found;
}

static void
note_lane(Pair *pair, int port)
{
	Node	   *from = node_of_socket(pair->fd[0], port);

	pair->known = 1;
	lanes_seen++;
	if (from != NULL)
		strcpy(pair->from, from->name);
	else
		lanes_unknown++;
}

static void
accept_pair(const Listener *listener)
{
	int			client = accept(listener->fd, NULL, NULL);
	struct sockaddr_in address = loopback(1, listener->lane ? listener->lane : listener->node->port);
	Pair	   *pair = NULL;
	int			server;

	if (client < 0)
		return;
	for (int i = 0; i < PAIRS && pair == NULL; i++)
		if (!pairs[i].used)
			pair = &pairs[i];
	server = socket(AF_INET, SOCK_STREAM, 0);
	make_nonblocking(client);
	make_nonblocking(server);
	if (pair == NULL || (connect(server, (struct sockaddr *) &address, sizeof(address)) != 0 && errno != EINPROGRESS))
	{
		close(client);
		close(server);
		return;
	}
	memset(pair, 0, sizeof(Pair));
	pair->used = 1;
	pair->to = listener->node;
	pair->fd[0] = client;
	pair->fd[1] = server;
	strcpy(pair->from, "?");
	if (listener->lane)
		note_lane(pair, listener->lane);
}

static unsigned
read_int(const char *data)
{
	unsigned	value;

	memcpy(&value, data, sizeof(value));
	return ntohl(value);
}

/* Looks for application_name in a startup packet: pairs of names and values, each ended by a zero byte. */
static void
read_startup(Pair *pair, const char *data, size_t size)
{
	const char *end = data + size;

	if (size <= SHORT_REQUEST || read_int(data + 4) != PROTOCOL_3)
		return;
	pair->known = 1;
	for (const char *name = data + SHORT_REQUEST; name < end && *name;)
	{
		const char *value = name + strnlen(name, end - name) + 1;

		if (value >= end)
			return;
		if (strcmp(name, "application_name") == 0 && strncmp(value, "tessera ", 8) == 0)
			snprintf(pair->from, NAME, "%s", value + 8);
		name = value + strnlen(value, end - value) + 1;
	}
}

/* Reads once; false: the pair is broken. */
static int
read_way(Pair *pair, int side, const Rule *rule)
{
	Direction  *way = &pair->way[side];
	Chunk	   *chunk = malloc(sizeof(Chunk));
	ssize_t		n = recv(pair->fd[side], chunk->data, CHUNK, 0);

	if (n <= 0)
	{
		free(chunk);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		way->ended = 1;
		return 1;
	}
	if (side == 0 && !pair->known)
		read_startup(pair, chunk->data, n);
	chunk->next = NULL;
	chunk->size = n;
	chunk->sent = 0;
	chunk->due = now_s() + (rule->fault == FAULT_SLOW ? rule->amount / 1000 : 0);
	if (way->last != NULL && way->first != NULL)
		way->last->next = chunk;
	else
		way->first = chunk;
	way->last = chunk;
	way->queued += n;
	return 1;
}

/* Writes what is due; false: the pair is broken. */
static int
write_way(Pair *pair, int side, const Rule *rule)
{
	Direction  *way = &pair->way[side];
	int			sink = pair->fd[1 - side];
	double		now = now_s();

	while (way->first != NULL && way->first->due <= now && way->not_before <= now)
	{
		Chunk	   *chunk = way->first;
		size_t		most = chunk->size - chunk->sent;
		ssize_t		n;

		if (rule->fault == FAULT_THROTTLE && most > 1024)
			most = 1024;
		n = send(sink, chunk->data + chunk->sent, most, MSG_NOSIGNAL);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR || errno == ENOTCONN;
		chunk->sent += n;
		way->queued -= n;
		if (rule->fault == FAULT_THROTTLE)
			way->not_before = now + n / rule->amount;
		if (chunk->sent == chunk->size)
		{
			way->first = chunk->next;
			free(chunk);
		}
	}
	if (way->ended && way->first == NULL && !way->shut)
	{
		shutdown(sink, SHUT_WR);
		way->shut = 1;
	}
	return 1;
}

/* True if nothing of what is read from that side passes. */
static int
stands(const Rule *rule, int side)
{
	return rule->fault == FAULT_HOLD || (rule->fault == FAULT_MUTE && side == 1);
}

/* When something queued becomes due without any event of a socket; -1: never. */
static double
next_due(const Pair *pair)
{
	const Rule *rule = rule_of(pair);
	double		due = -1;

	for (int side = 0; side < 2; side++)
	{
		const Direction *way = &pair->way[side];
		double		at;

		if (way->first == NULL || stands(rule, side))
			continue;
		at = way->first->due > way->not_before ? way->first->due : way->not_before;
		if (due < 0 || at < due)
			due = at;
	}
	return due;
}


/* Commands */

static Node *
find_node(const char *name)
{
	for (int i = 0; i < nnodes; i++)
		if (strcmp(nodes[i].name, name) == 0)
			return &nodes[i];
	return NULL;
}

/* Listens on an address for a node; the port taken, 0 if that cannot be. */
static int
add_listener(Node *node, struct sockaddr_in address, int lane)
{
	Listener   *listener = &listeners[nlisteners];
	socklen_t	size = sizeof(address);
	int			on = 1;

	if (nlisteners == LISTENERS)
		return 0;
	listener->fd = socket(AF_INET, SOCK_STREAM, 0);
	listener->node = node;
	listener->lane = lane;
	make_nonblocking(listener->fd);
	setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener->fd, (struct sockaddr *) &address, sizeof(address)) != 0 || listen(listener->fd, 128) != 0)
	{
		close(listener->fd);
		return 0;
	}
	nlisteners++;
	getsockname(listener->fd, (struct sockaddr *) &address, &size);
	return ntohs(address.sin_port);
}

static void
do_listen(const char *name, int port)
{
	Node	   *node = &nodes[nnodes];
	int			taken;

	if (nnodes == NODES || find_node(name) != NULL)
	{
		puts("error too many nodes, or known already");
		return;
	}
	nnodes++;
	snprintf(node->name, NAME, "%s", name);
	node->port = port;
	taken = add_listener(node, loopback(1, 0), 0);
	printf(taken ? "port %d\n" : "error cannot listen\n", taken);
}

static void
do_lane(Node *node, int first, int last)
{
	for (int port = first; port <= last; port++)
		if (!add_listener(node, loopback(2, port), port))
		{
			puts("error cannot listen");
			return;
		}
	puts("ok");
}

static void
do_link(const char *from, const char *to, const char *fault, double amount)
{
	Rule	   *rule = NULL;

	for (int i = 0; i < nrules; i++)
		if (strcmp(rules[i].from, from) == 0 && strcmp(rules[i].to, to) == 0)
			rule = &rules[i];
	if (rule == NULL && nrules < RULES)
		rule = &rules[nrules++];
	for (int i = 0; rule != NULL && i < (int) (sizeof(fault_names) / sizeof(fault_names[0])); i++)
		if (strcmp(fault, fault_names[i]) == 0)
		{
			snprintf(rule->from, NAME, "%s", from);
			snprintf(rule->to, NAME, "%s", to);
			rule->fault = (Fault) i;
			rule->amount = amount > 0 ? amount : 1;
			puts("ok");
			return;
		}
	puts("error unknown fault, or too many links");
}

static void
command(const char *line)
{
	char		a[NAME],
				b[NAME],
				fault[NAME];
	double		amount = 0;
	int			port,
				last;
	int			at = 0;

	if (sscanf(line, "listen %63s %d", a, &port) == 2)
		do_listen(a, port);
	else if (sscanf(line, "target %63s %d", a, &port) == 2 && find_node(a) != NULL)
	{
		find_node(a)->port = port;
		puts("ok");
	}
	else if (sscanf(line, "home %63s %n", a, &at) == 1 && at > 0 && find_node(a) != NULL)
	{
		snprintf(find_node(a)->home, PATH_MAX, "%s", line + at);
		puts("ok");
	}
	else if (sscanf(line, "lane %63s %d %d", a, &port, &last) == 3 && find_node(a) != NULL)
		do_lane(find_node(a), port, last);
	else if (strcmp(line, "lanes") == 0)
		printf("lanes %d %d\n", lanes_seen, lanes_unknown);
	else if (sscanf(line, "link %63s %63s %63s %lf", a, b, fault, &amount) >= 3)
		do_link(a, b, fault, amount);
	else
		puts("error unknown command");
	fflush(stdout);
}

static void
read_commands(void)
{
	ssize_t		n = read(STDIN_FILENO, input + input_size, sizeof(input) - input_size - 1);
	char	   *end;

	if (n <= 0)
		exit(0);
	input_size += n;
	input[input_size] = '\0';
	while ((end = strchr(input, '\n')) != NULL)
	{
		*end = '\0';
		command(input);
		input_size -= end + 1 - input;
		memmove(input, end + 1, input_size + 1);
	}
}


/* The loop */

/* What to wait for on the sockets of a pair. */
static void
wanted_events(const Pair *pair, const Rule *rule, double now, short *events)
{
	events[0] = events[1] = 0;
	for (int side = 0; side < 2; side++)
	{
		const Direction *way = &pair->way[side];

		if (stands(rule, side))
			continue;
		if (!way->ended && way->queued < QUEUED)
			events[side] |= POLLIN;
		if (way->first != NULL && way->first->due <= now && way->not_before <= now)
			events[1 - side] |= POLLOUT;
	}
}

static void
serve_pair(Pair *pair, const struct pollfd *polled)
{
	const Rule *rule = rule_of(pair);

	if (rule->fault == FAULT_DROP)
	{
		close_pair(pair, 1);
		return;
	}
	for (int side = 0; side < 2; side++)
	{
		int			readable = (polled[side].events & POLLIN) && (polled[side].revents & (POLLIN | POLLHUP | POLLERR));

		if (stands(rule, side))
			continue;
		if ((readable && !read_way(pair, side, rule)) || !write_way(pair, side, rule))
		{
			close_pair(pair, 1);
			return;
		}
	}
	if (pair->way[0].shut && pair->way[1].shut)
		close_pair(pair, 0);
}

static int
poll_timeout(double now)
{
	double		least = 1;

	for (int i = 0; i < PAIRS; i++)
		if (pairs[i].used)
		{
			double		due = next_due(&pairs[i]);

			if (due >= 0 && due - now < least)
				least = due - now;
		}
	return least <= 0 ? 1 : (int) (least * 1000) + 1;
}

int
main(void)
{
	static struct pollfd polled[1 + LISTENERS + 2 * PAIRS];
	static int	pair_at[PAIRS];

	signal(SIGPIPE, SIG_IGN);
	for (;;)
	{
		double		now = now_s();
		int			n = 0;
		int			nlistening = nlisteners;

		polled[n++] = (struct pollfd) {.fd = STDIN_FILENO, .events = POLLIN};
		for (int i = 0; i < nlistening; i++)
			polled[n++] = (struct pollfd) {.fd = listeners[i].fd, .events = POLLIN};
		for (int i = 0; i < PAIRS; i++)
		{
			short		events[2];

			pair_at[i] = -1;
			if (!pairs[i].used)
				continue;
			pair_at[i] = n;
			wanted_events(&pairs[i], rule_of(&pairs[i]), now, events);
			for (int side = 0; side < 2; side++)
				polled[n++] = (struct pollfd) {.fd = events[side] ? pairs[i].fd[side] : -1, .events = events[side]};
		}
		if (poll(polled, n, poll_timeout(now)) < 0 && errno != EINTR)
			return 1;
		for (int i = 0; i < PAIRS; i++)
			if (pair_at[i] >= 0)
				serve_pair(&pairs[i], &polled[pair_at[i]]);
		for (int i = 0; i < nlistening; i++)
			if (polled[1 + i].revents)
				accept_pair(&listeners[i]);
		if (polled[0].revents)
			read_commands();
	}
}
