#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"
#include "train/checkpoint.h"
#include "train/command.h"
#include "train/manifest.h"
#include "train/options.h"
#include "train/sampler.h"
#include "train/threads.h"

static void print_token(const struct tokenizer *tokenizer, int32_t token) {
    uint8_t text[16];
    fwrite(text, 1, (size_t)tokenizer->decode(token, text), stdout);
    fflush(stdout);
}

/* Continues tokens[count] (room for o->tokens more) one by one, looking back at most one context. */
static void continue_text(const struct options *o, struct gpt *g, const struct tokenizer *tokenizer,
                          int32_t *tokens, int64_t count) {
    const struct sampler sampler = {o->temperature, o->top_k, o->top_p, (uint64_t)o->seed};
    const int vocab = tokenizer->vocab < g->config.vocab ? tokenizer->vocab : g->config.vocab;
    float *logits = memory_alloc(sizeof *logits * (size_t)g->config.vocab);
    for (int64_t i = 0; i < o->tokens; i++, count++) {
        const int64_t seen = count < g->config.context ? count : g->config.context;
        const struct gpt_batch batch = {.tokens = tokens + count - seen, .sequences = 1, .positions = seen};
        gpt_forward(g, &batch);
        gpt_logits(g, seen - 1, logits);
        tokens[count] = sampler_draw(&sampler, logits, vocab, count);
        print_token(tokenizer, tokens[count]);
    }
    printf("\n");
    free(logits);
}

static int generate(const struct options *o, struct error *e) {
    char checkpoint[1024];
    struct checkpoint_info info;
    const struct device *device = device_find(o->device, e);
    struct comm *self;
    const struct comm_options alone = {.timeout_s = 60.0};
    if (!device || comm_open(&self, "self", &alone, e)) return -1;
    const struct thread_plan plan = threads_plan(o->threads, self);
    comm_close(self);
    if (device->open(plan.threads, e) || checkpoint_locate(o->checkpoint, checkpoint, sizeof checkpoint, e) ||
        manifest_verify_model(checkpoint, e) || checkpoint_read_info(checkpoint, &info, e) ||
        device_find_precision(device, o->precision, &info.config.precision, e))
        return -1;
    const struct tokenizer *tokenizer = tokenizer_find(info.tokenizer, e);
    if (!tokenizer) return -1;

    const int64_t length = (int64_t)strlen(o->prompt);
    if (length == 0) return error_set(e, "--prompt is empty; expected at least one character to continue");
    int32_t *tokens = memory_alloc(sizeof *tokens * (size_t)(length + o->tokens));
    const int64_t count = tokenizer->encode((const uint8_t *)o->prompt, length, tokens);
    int status = 0;
    for (int64_t i = 0; i < count && !status; i++)
        if (tokens[i] >= info.config.vocab)
            status = error_set(e, "--prompt holds token %d, but the model's vocabulary ends at %d", tokens[i],
                               info.config.vocab - 1);
    struct gpt gpt;
    gpt_create(&gpt, &info.config, device, 1, false);
    status = status || checkpoint_read_weights(checkpoint, &gpt, e);
    if (!status) {
        for (int64_t i = 0; i < count; i++) print_token(tokenizer, tokens[i]);
        continue_text(o, &gpt, tokenizer, tokens, count);
    }
    gpt_free(&gpt);
    free(tokens);
    return status ? -1 : 0;
}

int command_generate(int argc, char **argv) {
    struct options o;
    struct error e;
    bool help;
    int status = options_parse(&o, GENERATE, argc, argv, &help, &e);
    if (help) {
        printf("usage: tandem generate --checkpoint DIR --prompt TEXT [OPTIONS]\n\nSamples a continuation of "
               "the prompt. "
               "Options, with their defaults:\n\n");
        options_print_help(GENERATE, stdout);
        return EXIT_OK;
    }
    if (!status && o.word_count)
        status = error_set(&e, "found '%s', expected options only; --help lists them", o.words[0]);
    if (!status) status = generate(&o, &e);
    if (status) fprintf(stderr, "tandem generate: %s\n", e.text);
    return status ? EXIT_USAGE : EXIT_OK;
}
