/*
 * message.c
 *	  The messages of a migration's exchange as BSON documents, by libbson.
 *
 * Each kind of message has a fixed set of fields (fields_of). Encoding counts the document's exact size first, has the buffer allocated once, and
 * lets libbson write into it without ever growing it. Decoding goes over the fields once: each must be known, wanted by the kind, of its one type,
 * and there once; then the values are checked. The size counted from the decoded values must be the size received, so that no byte goes unread.
 *
 * Memory: the encoded document belongs to the caller, by its allocator; a decoded message points into the data it was decoded from. The only memory
 * of libbson's own is the handle of the document being encoded, freed before the return (but not if an allocator that was set by tessera_message_init
 * leaves by longjmp: its memory context frees it then). No state but libbson's allocator table, no lock; a crash leaves nothing. Plain C, so that
 * tests and fuzzers build it without the server.
 */
#include "codec/message.h"

#include <stdlib.h>
#include <string.h>

#include <bson/bson.h>

#define MIGRATION_SIZE 16
#define SQLSTATE_SIZE 5

/* An encoded document is never larger: BSON sizes are int32. */
#define DOCUMENT_LIMIT ((size_t) INT32_MAX)

typedef enum Field
{
	FIELD_VERSION,
	FIELD_KIND,
	FIELD_MIGRATION,
	FIELD_SEQUENCE,
	FIELD_TABLE,
	FIELD_ROWS,
	FIELD_LSN,
	FIELD_LAST,
	FIELD_SQLSTATE,
	FIELD_TEXT,
	FIELD_PAYLOAD,
	FIELD_COUNT
} Field;

typedef struct FieldType
{
	const char *key;
	bson_type_t type;
	bson_subtype_t subtype;		/* of binary fields */
	unsigned	size;			/* of the value, in bytes; for text and binary, of what precedes and ends it */
} FieldType;

/* Indexed by Field; documents have their fields in this order. */
static const FieldType field_types[FIELD_COUNT] = {
	[FIELD_VERSION] = {"version", BSON_TYPE_INT32, 0, 4},
	[FIELD_KIND] = {"kind", BSON_TYPE_INT32, 0, 4},
	[FIELD_MIGRATION] = {"migration", BSON_TYPE_BINARY, BSON_SUBTYPE_UUID, 5},
	[FIELD_SEQUENCE] = {"sequence", BSON_TYPE_INT64, 0, 8},
	[FIELD_TABLE] = {"table", BSON_TYPE_INT32, 0, 4},
	[FIELD_ROWS] = {"rows", BSON_TYPE_INT64, 0, 8},
	[FIELD_LSN] = {"lsn", BSON_TYPE_INT64, 0, 8},
	[FIELD_LAST] = {"last", BSON_TYPE_BOOL, 0, 1},
	[FIELD_SQLSTATE] = {"sqlstate", BSON_TYPE_UTF8, 0, 5},
	[FIELD_TEXT] = {"text", BSON_TYPE_UTF8, 0, 5},
	[FIELD_PAYLOAD] = {"payload", BSON_TYPE_BINARY, BSON_SUBTYPE_BINARY, 5},
};

#define BIT(field) (1u << (field))
#define COMMON_FIELDS (BIT(FIELD_VERSION) | BIT(FIELD_KIND) | BIT(FIELD_MIGRATION) | BIT(FIELD_SEQUENCE))

/*
 * The fields of a kind of message, as a set of bits; 0 for an unknown kind.
 */
static unsigned
fields_of(TesseraMessageKind kind)
{
	switch (kind)
	{
		case TESSERA_MSG_CLONE_REQUEST:
			return COMMON_FIELDS;
		case TESSERA_MSG_CLONE_BATCH:
			return COMMON_FIELDS | BIT(FIELD_TABLE) | BIT(FIELD_ROWS) | BIT(FIELD_LAST) | BIT(FIELD_PAYLOAD);
		case TESSERA_MSG_MODS_REQUEST:
			return COMMON_FIELDS | BIT(FIELD_LSN);
		case TESSERA_MSG_MODS_BATCH:
			return COMMON_FIELDS | BIT(FIELD_TABLE) | BIT(FIELD_ROWS) | BIT(FIELD_LSN) | BIT(FIELD_LAST) | BIT(FIELD_PAYLOAD);
		case TESSERA_MSG_ERROR:
			return COMMON_FIELDS | BIT(FIELD_SQLSTATE) | BIT(FIELD_TEXT);
		case TESSERA_MSG_VERIFY:
			return COMMON_FIELDS | BIT(FIELD_ROWS) | BIT(FIELD_LAST) | BIT(FIELD_PAYLOAD);
		case TESSERA_MSG_VERIFIED:
			return COMMON_FIELDS;
	}
	return 0;
}

static bool
sqlstate_is_good(const char *sqlstate)
{
	if (strlen(sqlstate) != SQLSTATE_SIZE)
		return false;
	for (; *sqlstate != '\0'; sqlstate++)
	{
		if (!((*sqlstate >= '0' && *sqlstate <= '9') || (*sqlstate >= 'A' && *sqlstate <= 'Z')))
			return false;
	}
	return true;
}

/*
 * Checks the values of a message of a known kind; the same for one to encode and one decoded.
 */
static bool
values_are_good(const TesseraMessage *message, const char **error)
{
	unsigned	fields = fields_of(message->kind);

	if ((fields & BIT(FIELD_TABLE)) != 0 && message->table < -1)
		*error = "message has a bad table index";
	else if ((fields & BIT(FIELD_ROWS)) != 0 && message->rows < 0)
		*error = "message has a negative number of rows";
	else if ((fields & BIT(FIELD_PAYLOAD)) != 0 && (message->payload == NULL) != (message->payload_size == 0))
		*error = "message has a payload without size, or a size without payload";
	else if ((fields & BIT(FIELD_PAYLOAD)) != 0 && message->payload == NULL && message->rows > 0)
		*error = "message states rows but has no payload";
	else if ((fields & BIT(FIELD_SQLSTATE)) != 0 && (message->sqlstate == NULL || !sqlstate_is_good(message->sqlstate)))
		*error = "message has a bad sqlstate";
	else if ((fields & BIT(FIELD_TEXT)) != 0 && message->text == NULL)
		*error = "message has no text";
	else
		return true;
	return false;
}

/*
 * Exact size, in bytes, of the document that a message of a known kind and good values makes; 0 if it is over DOCUMENT_LIMIT.
 */
static size_t
document_size(const TesseraMessage *message)
{
	unsigned	fields = fields_of(message->kind);
	size_t		fixed = 4 + 1;
	size_t		variable = MIGRATION_SIZE;

	for (int field = 0; field < FIELD_COUNT; field++)
	{
		if ((fields & BIT(field)) != 0)
			fixed += 1 + strlen(field_types[field].key) + 1 + field_types[field].size;
	}
	if ((fields & BIT(FIELD_SQLSTATE)) != 0)
		variable += SQLSTATE_SIZE;
	if ((fields & BIT(FIELD_TEXT)) != 0)
		variable += strlen(message->text);
	if ((fields & BIT(FIELD_PAYLOAD)) != 0)
	{
		if (message->payload_size > DOCUMENT_LIMIT)
			return 0;
		variable += message->payload_size;
	}
	if (variable > DOCUMENT_LIMIT - fixed)
		return 0;
	return fixed + variable;
}

static bool
append_field(bson_t *document, Field field, const TesseraMessage *message)
{
	const char *key = field_types[field].key;
	const int	length = (int) strlen(key);

	switch (field)
	{
		case FIELD_VERSION:
			return bson_append_int32(document, key, length, TESSERA_MESSAGE_VERSION);
		case FIELD_KIND:
			return bson_append_int32(document, key, length, (int32_t) message->kind);
		case FIELD_MIGRATION:
			return bson_append_binary(document, key, length, BSON_SUBTYPE_UUID, message->migration, MIGRATION_SIZE);
		case FIELD_SEQUENCE:
			return bson_append_int64(document, key, length, message->sequence);
		case FIELD_TABLE:
			return bson_append_int32(document, key, length, message->table);
		case FIELD_ROWS:
			return bson_append_int64(document, key, length, message->rows);
		case FIELD_LSN:
			return bson_append_int64(document, key, length, (int64_t) message->lsn);
		case FIELD_LAST:
			return bson_append_bool(document, key, length, message->last);
		case FIELD_SQLSTATE:
			return bson_append_utf8(document, key, length, message->sqlstate, SQLSTATE_SIZE);
		case FIELD_TEXT:
			return bson_append_utf8(document, key, length, message->text, (int) strlen(message->text));
		case FIELD_PAYLOAD:
			return bson_append_binary(document, key, length, BSON_SUBTYPE_BINARY, message->payload != NULL ? message->payload : (const void *) "",
									  (uint32_t) message->payload_size);
		case FIELD_COUNT:
			break;
	}
	return false;
}

/*
 * Asked by libbson for a larger buffer, which the counted size rules out. There is no way to refuse; going on would write past the buffer.
 */
static void *
refuse_to_grow(void *buffer, size_t size, void *arg)
{
	(void) buffer;
	(void) size;
	(void) arg;
	abort();
}

/*
 * Writes the document into the buffer, which it must fill exactly.
 */
static bool
write_document(const TesseraMessage *message, uint8_t *buffer, size_t size, const char **error)
{
	static const uint8_t empty_document[] = {5, 0, 0, 0, 0};
	unsigned	fields = fields_of(message->kind);
	bool		good = true;
	uint32_t	length;
	bson_t	   *document;

	memcpy(buffer, empty_document, sizeof(empty_document));
	document = bson_new_from_buffer(&buffer, &size, refuse_to_grow, NULL);
	if (document == NULL)
	{
		*error = "could not start the document";
		return false;
	}
	for (int field = 0; good && field < FIELD_COUNT; field++)
	{
		if ((fields & BIT(field)) != 0)
			good = append_field(document, (Field) field, message);
	}
	/* Frees the handle; the buffer stays with its owner. */
	bson_destroy(document);
	/* Not from the handle: libbson allocates it less aligned than its type is declared. */
	memcpy(&length, buffer, sizeof(length));
	if (!good || BSON_UINT32_FROM_LE(length) != size)
	{
		*error = "message does not fit its document";
		return false;
	}
	return true;
}

/*
 * Encodes a message. The buffer comes from alloc(size, arg), is the caller's, and is returned with its length, in bytes, in *size; NULL and a static
 * text in *error if a value is bad, the document would exceed 2 GB, or alloc returns NULL (a buffer already allocated is then left to the caller's
 * allocator to free, as is natural for a memory context). The text of an error message must be UTF-8.
 */
void *
tessera_message_encode(const TesseraMessage *message, size_t *size, void *(*alloc) (size_t, void *), void *arg, const char **error)
{
	size_t		needed;
	uint8_t    *buffer;

	if (fields_of(message->kind) == 0)
	{
		*error = "unknown kind of message";
		return NULL;
	}
	if (!values_are_good(message, error))
		return NULL;
	if (message->kind == TESSERA_MSG_ERROR && !bson_utf8_validate(message->text, strlen(message->text), false))
	{
		*error = "text of the message is not UTF-8";
		return NULL;
	}
	needed = document_size(message);
	if (needed == 0)
	{
		*error = "message is too large";
		return NULL;
	}
	buffer = alloc(needed, arg);
	if (buffer == NULL)
	{
		*error = "out of memory";
		return NULL;
	}
	if (!write_document(message, buffer, needed, error))
		return NULL;
	*size = needed;
	return buffer;
}

static int
field_of_key(const char *key)
{
	for (int field = 0; field < FIELD_COUNT; field++)
	{
		if (strcmp(field_types[field].key, key) == 0)
			return field;
	}
	return FIELD_COUNT;
}

/*
 * The binary value at the iterator; false if it is of another subtype than the field's.
 */
static bool
read_binary(const bson_iter_t *iter, Field field, const uint8_t **data, uint32_t *size)
{
	bson_subtype_t subtype;

	bson_iter_binary(iter, &subtype, size, data);
	return *data != NULL && subtype == field_types[field].subtype;
}

/*
 * The text at the iterator; NULL if it is not UTF-8 or has a nul inside.
 */
static const char *
read_text(const bson_iter_t *iter)
{
	uint32_t	length;
	const char *text = bson_iter_utf8(iter, &length);

	if (text == NULL || !bson_utf8_validate(text, length, false) || strlen(text) != length)
		return NULL;
	return text;
}

/*
 * Takes the value at the iterator, which has the field's type, into the message.
 */
static bool
read_field(TesseraMessage *message, Field field, const bson_iter_t *iter)
{
	const uint8_t *data;
	uint32_t	size;

	switch (field)
	{
		case FIELD_VERSION:
			return bson_iter_int32(iter) == TESSERA_MESSAGE_VERSION;
		case FIELD_KIND:
			message->kind = (TesseraMessageKind) bson_iter_int32(iter);
			return fields_of(message->kind) != 0;
		case FIELD_MIGRATION:
			if (!read_binary(iter, field, &data, &size) || size != MIGRATION_SIZE)
				return false;
			memcpy(message->migration, data, MIGRATION_SIZE);
			return true;
		case FIELD_SEQUENCE:
			message->sequence = bson_iter_int64(iter);
			return true;
		case FIELD_TABLE:
			message->table = bson_iter_int32(iter);
			return true;
		case FIELD_ROWS:
			message->rows = bson_iter_int64(iter);
			return true;
		case FIELD_LSN:
			message->lsn = (uint64_t) bson_iter_int64(iter);
			return true;
		case FIELD_LAST:
			message->last = bson_iter_bool(iter);
			return true;
		case FIELD_SQLSTATE:
			message->sqlstate = read_text(iter);
			return message->sqlstate != NULL;
		case FIELD_TEXT:
			message->text = read_text(iter);
			return message->text != NULL;
		case FIELD_PAYLOAD:
			if (!read_binary(iter, field, &data, &size))
				return false;
			message->payload = size > 0 ? data : NULL;
			message->payload_size = size;
			return true;
		case FIELD_COUNT:
			break;
	}
	return false;
}

/*
 * Reads all fields into the message, and which there are into *found.
 */
static bool
read_fields(TesseraMessage *message, const bson_t *document, unsigned *found, const char **error)
{
	bson_iter_t iter;

	*found = 0;
	if (!bson_iter_init(&iter, document))
	{
		*error = "message is not a document";
		return false;
	}
	while (bson_iter_next(&iter))
	{
		int			field = field_of_key(bson_iter_key(&iter));

		if (field == FIELD_COUNT)
			*error = "message has an unknown field";
		else if ((*found & BIT(field)) != 0)
			*error = "message has a field twice";
		else if (bson_iter_type(&iter) != field_types[field].type)
			*error = "message has a field of the wrong type";
		else if (!read_field(message, (Field) field, &iter))
			*error = (field == FIELD_VERSION) ? "message is of another version" :
				(field == FIELD_KIND) ? "unknown kind of message" : "message has a bad value";
		else
		{
			*found |= BIT(field);
			continue;
		}
		return false;
	}
	return true;
}

/*
 * Decodes the document of size bytes in data. Pointers in *message point into data and live as long. False and a static text in *error on anything
 * that tessera_message_encode would not have written, but for the order of the fields.
 */
bool
tessera_message_decode(TesseraMessage *message, const void *data, size_t size, const char **error)
{
	bson_t		document;
	bson_error_t invalid;
	unsigned	found;

	memset(message, 0, sizeof(*message));
	message->table = -1;
	if (size > DOCUMENT_LIMIT || !bson_init_static(&document, data, size))
	{
		*error = "message is not a document";
		return false;
	}
	/* Refuses documents in the document, so that the validation that follows does not go down into them. */
	if (!read_fields(message, &document, &found, error))
		return false;
	if (!bson_validate_with_error(&document, (bson_validate_flags_t) (BSON_VALIDATE_UTF8 | BSON_VALIDATE_EMPTY_KEYS), &invalid))
		*error = "message is a damaged document";
	else if ((found & COMMON_FIELDS) != COMMON_FIELDS || (fields_of(message->kind) & ~found) != 0)
		*error = "message lacks a field";
	else if (found != fields_of(message->kind))
		*error = "message has a field that its kind does not have";
	else if (!values_are_good(message, error))
		return false;
	else if (document_size(message) != size)
		*error = "message has bytes of no field";
	else
		return true;
	return false;
}

/*
 * Has libbson allocate by the functions given, all four, from now on in this process. Call once, before the first message: libbson aborts the process
 * if its allocator returns NULL, so the functions should raise the server's own error instead. They must take what C's functions of these names
 * take (realloc and free of NULL, sizes of 0).
 */
void
tessera_message_init(void *(*malloc_) (size_t), void *(*calloc_) (size_t, size_t), void *(*realloc_) (void *, size_t), void (*free_) (void *))
{
	bson_mem_vtable_t table;

	memset(&table, 0, sizeof(table));
	table.malloc = malloc_;
	table.calloc = calloc_;
	table.realloc = realloc_;
	table.free = free_;
	bson_mem_set_vtable(&table);
}
