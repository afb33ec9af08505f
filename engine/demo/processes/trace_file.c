#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "engine/demo/processes/trace.h"

#define STAGE "demo.trace_file"

/* Where in the file a message is about. */
struct place {
    const char *path;
    uint64_t line; /* from 1 */
};

static hl_status read_number(const struct place *place, const json_t *object, const char *field,
                             int64_t *value, hl_error *err)
{
    const json_t *member = json_object_get(object, field);
    if (!json_is_integer(member) || json_integer_value(member) < 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%.100s, line %llu: %s is %s", place->path,
                       (unsigned long long)place->line, field, member ? "no integer from 0" : "missing");
    *value = json_integer_value(member);
    return HL_OK;
}

/* Makes room for one element more. */
static hl_status make_room(void **array, size_t used, size_t *room, size_t element, hl_error *err)
{
    if (used < *room)
        return HL_OK;
    size_t more = *room ? 2 * *room : 1024;
    void *grown = reallocarray(*array, more, element);
    if (!grown)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a trace of %zu entries", more);
    *array = grown;
    *room = more;
    return HL_OK;
}

static hl_status read_ids(const struct place *place, const json_t *object, struct hl_trace *trace,
                          hl_error *err)
{
    const json_t *ids = json_object_get(object, "hash_ids");
    if (!json_is_array(ids))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%.100s, line %llu: hash_ids is %s", place->path,
                       (unsigned long long)place->line, ids ? "no array" : "missing");
    size_t count = json_array_size(ids);
    if (count > HL_TRACE_REQUEST_IDS || count > HL_TRACE_IDS - trace->id_count)
        return HL_FAIL(err, HL_E_LIMIT, STAGE,
                       "%.100s, line %llu: hash_ids has %zu entries: at most %u in a line, %u in a file",
                       place->path, (unsigned long long)place->line, count, HL_TRACE_REQUEST_IDS,
                       HL_TRACE_IDS);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "%.100s, line %llu: hash_ids[%zu] is no integer from 0",
                           place->path, (unsigned long long)place->line, i);
        hl_status status =
            make_room((void **)&trace->ids, trace->id_count, &trace->id_room, sizeof *trace->ids, err);
        if (status)
            return status;
        trace->ids[trace->id_count++] = (uint64_t)json_integer_value(id);
    }
    return HL_OK;
}

static hl_status read_request(const struct place *place, const json_t *object, struct hl_trace *trace,
                              hl_error *err)
{
    struct hl_trace_request request = {.first = trace->id_count};
    hl_status status = read_number(place, object, "timestamp", &request.timestamp, err);
    if (!status)
        status = read_number(place, object, "input_length", &request.input_length, err);
    if (!status)
        status = read_number(place, object, "output_length", &request.output_length, err);
    if (!status)
        status = read_ids(place, object, trace, err);
    if (!status)
        status = make_room((void **)&trace->requests, trace->request_count, &trace->request_room,
                           sizeof *trace->requests, err);
    if (status)
        return status;
    request.count = trace->id_count - request.first;
    trace->requests[trace->request_count++] = request;
    trace->most_ids = request.count > trace->most_ids ? request.count : trace->most_ids;
    return HL_OK;
}

static hl_status read_line(const struct place *place, const char *line, size_t size, struct hl_trace *trace,
                           hl_error *err)
{
    json_error_t reason;
    json_t *object = json_loadb(line, size, JSON_REJECT_DUPLICATES, &reason);
    hl_status status;
    if (!object)
        status = HL_FAIL(err, HL_E_CORRUPT, STAGE, "%.100s, line %llu: %.80s", place->path,
                         (unsigned long long)place->line, reason.text);
    else if (!json_is_object(object))
        status = HL_FAIL(err, HL_E_CORRUPT, STAGE, "%.100s, line %llu: it is no JSON object", place->path,
                         (unsigned long long)place->line);
    else
        status = read_request(place, object, trace, err);
    json_decref(object);
    return status;
}

static hl_status read_lines(FILE *file, const char *path, uint32_t most, char *line, struct hl_trace *trace,
                            hl_error *err)
{
    struct place place = {.path = path};
    hl_status status = HL_OK;
    while (!status && (most == 0 || trace->request_count < most)) {
        size_t size = 0;
        int byte;
        while ((byte = getc(file)) != EOF && byte != '\n' && size < HL_TRACE_LINE_BYTES)
            line[size++] = (char)byte;
        place.line++;
        if (byte != EOF && byte != '\n')
            return HL_FAIL(err, HL_E_LIMIT, STAGE, "%.100s, line %llu: it is longer than %u bytes", path,
                           (unsigned long long)place.line, HL_TRACE_LINE_BYTES);
        if (byte == EOF && size == 0)
            break;
        status = read_line(&place, line, size, trace, err);
    }
    if (!status && ferror(file))
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read %.100s", path);
    if (!status && trace->request_count == 0)
        status = HL_FAIL(err, HL_E_INVALID, STAGE, "%.100s holds no request", path);
    return status;
}

static hl_status count_unique(struct hl_trace *trace, hl_error *err)
{
    hl_reference_cache *seen;
    hl_status status = hl_reference_open(&seen, err);
    if (status)
        return status;
    status = hl_reference_add(seen, trace->ids, trace->id_count, err);
    trace->unique = hl_reference_size(seen);
    hl_reference_close(seen);
    return status;
}

hl_status hl_trace_read(const char *path, uint32_t most, struct hl_trace *trace, hl_error *err)
{
    struct hl_trace read = {0};
    FILE *file = fopen(path, "re");
    if (!file)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open %.100s", path);
    char *line = malloc(HL_TRACE_LINE_BYTES);
    hl_status status = line ? read_lines(file, path, most, line, &read, err)
                            : HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a line");
    free(line);
    fclose(file);
    if (!status)
        status = count_unique(&read, err);
    if (status) {
        hl_trace_free(&read);
        return status;
    }
    *trace = read;
    return HL_OK;
}

void hl_trace_free(struct hl_trace *trace)
{
    free(trace->requests);
    free(trace->ids);
    *trace = (struct hl_trace){0};
}
