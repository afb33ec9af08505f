/* For the tests of core/weights/document: texts made from a good one by replacing a part. */
#ifndef CORE_WEIGHTS_DOCUMENT_DOCUMENT_TESTING_H
#define CORE_WEIGHTS_DOCUMENT_DOCUMENT_TESTING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "core/weights/document/domain.h"

/* The identity of every default. */
#define TEST_IDENTITY                                                                                        \
    "{\"adaptation\":{\"fingerprint\":null,\"kind\":\"base\",\"metadata\":{}},\"component\":{"               \
    "\"metadata\":{},\"name\":\"transformer\",\"ownership\":\"diffusion.dit\"},\"layout\":{\"metadata\":{}," \
    "\"name\":\"final-module-layout\",\"sequence_parallel_backend\":\"none\",\"sequence_parallel_size\":1,"  \
    "\"tensor_parallel_rank\":0,\"tensor_parallel_size\":1},\"producer\":{\"implementation_fingerprint\":"   \
    "\"implementation-sha256\",\"manifest_schema\":\"test-producer-v1\",\"producer_id\":\"test.final-"       \
    "layout\",\"restorer_schema\":\"test-restorer-v1\",\"version\":\"1\"},\"representation\":{\"dtype\":"    \
    "\"torch.bfloat16\",\"metadata\":{},\"name\":\"runtime-bf16\"},\"schema_version\":1,\"source\":{"        \
    "\"fingerprint\":\"source-files-sha256\",\"metadata\":{},\"model_id\":\"test-org/test-model\","          \
    "\"revision\":\"0123456789abcdef\"}}"

/* `text` with the first `from` replaced by `to`; the part must be there. Freed with free(). */
static inline char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    struct hl_text made = {0};
    if (!at)
        fprintf(stderr, "%s is not in the text\n", from);
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    hl_text_append(&made, text, (size_t)(at - text));
    hl_text_print(&made, "%s%s", to, at + strlen(from));
    CU_ASSERT_FALSE_FATAL(made.failed);
    return made.bytes;
}

/* A change to a good text and what must become of it. */
struct change {
    const char *from, *to;
    hl_status status;
    const char *says;
};

/* Whether a parser did with the changed text what the change expects. */
static inline void expect_refusal(const struct change *change, hl_status status, const hl_error *err)
{
    bool said = strstr(err->text, change->says) != NULL;
    if (status != change->status || !said)
        fprintf(stderr, "%s -> %s: got %s, %s\n", change->from, change->to, hl_status_name(status),
                err->text);
    CU_ASSERT_EQUAL(status, change->status);
    CU_ASSERT_TRUE(said);
}

/* A file beside the tests. */
static inline char *read_testdata(const char *name, size_t *bytes)
{
    char path[256], *text = calloc(1, 1 << 16);
    snprintf(path, sizeof path, "core/weights/document/testdata/%s", name);
    FILE *file = fopen(path, "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    *bytes = fread(text, 1, (1 << 16) - 1, file);
    fclose(file);
    return text;
}

#endif
