#include "train/pipeline.h"

#include <stdlib.h>

#include "model/partition.h"

/* A set of activations. */
struct slot {
    int micro_batch; /* that was computed in it last; -1: none */
    bool held;       /* until its backward pass is done */
    /* Messages under way from and to its memory: the chunk's output; and the gradient, in or out. */
    struct work output, gradient;
    bool output_open, gradient_open;
};

/* Memory for an input. */
struct inbox {
    int micro_batch; /* whose input has arrived or is on its way; -1: free */
    struct work work;
};

/* What a chunk has of these. */
struct pipeline_station {
    struct slot *slot;
    struct inbox *inbox;
    int slots, inboxes, newest; /* the slot taken last */
};

/* A list being run. */
struct execution {
    struct pipeline *pipeline;
    const struct pipeline_job *job;
    const struct action *list;
    int count, ahead; /* receives before list[ahead] have been begun */
    struct pipeline_result result;
};

static bool has_input(const struct pipeline *p, int chunk) {
    return p->comm->rank > 0 || chunk > 0;
}

/* The most that a chunk has of what some actions take and others give back, over a list. */
static int peak(const struct schedule *s, int stage, int chunk, unsigned takes, unsigned gives) {
    int now = 0, most = 0;
    for (int i = 0; i < s->count[stage]; i++) {
        const struct action *a = &s->list[stage][i];
        if (a->chunk != chunk) continue;
        if (takes >> a->kind & 1) now++;
        if (gives >> a->kind & 1) now--;
        if (now > most) most = now;
    }
    return most;
}

static void create_stations(struct pipeline *p) {
    const struct schedule *s = &p->schedule;
    const int stage = p->comm->rank;
    p->station = memory_alloc_zeroed(sizeof *p->station * (size_t)s->chunks);
    for (int c = 0; c < s->chunks; c++) {
        struct pipeline_station *t = &p->station[c];
        t->slots =
            peak(s, stage, c, 1u << ACTION_FORWARD, 1u << ACTION_BACKWARD | 1u << ACTION_BACKWARD_WEIGHT);
        /* One more than the list asks for, so that the next can arrive while there is no need of it yet. */
        t->inboxes =
            has_input(p, c) ? 1 + peak(s, stage, c, 1u << ACTION_RECEIVE_FORWARD, 1u << ACTION_FORWARD) : 0;
        t->slot = memory_alloc_zeroed(sizeof *t->slot * (size_t)t->slots);
        t->inbox = memory_alloc_zeroed(sizeof *t->inbox * (size_t)t->inboxes);
        for (int i = 0; i < t->inboxes; i++) t->inbox[i].micro_batch = -1;
    }
}

static void create_model(struct pipeline *p, const struct gpt_config *config, const struct device *device,
                         const struct gpt_chunk *all) {
    const struct schedule *s = &p->schedule;
    const size_t chunks = (size_t)s->chunks;
    struct gpt_chunk *own = memory_alloc(sizeof *own * chunks);
    int *sets = memory_alloc(sizeof *sets * chunks), *inputs = memory_alloc(sizeof *inputs * chunks);
    for (int c = 0; c < s->chunks; c++) {
        own[c] = all[c * s->stages + p->comm->rank];
        sets[c] = p->station[c].slots;
        inputs[c] = p->station[c].inboxes;
    }
    const struct gpt_stage stage = {own, sets, inputs, s->chunks, schedule_splits_backward(s, p->comm->rank)};
    gpt_create_stage(p->gpt, config, device, p->micro_batch, &stage);
    free(own);
    free(sets);
    free(inputs);
}

int pipeline_create(struct pipeline *p, struct gpt *gpt, const struct gpt_config *config,
                    const struct device *device, struct comm *comm, const struct pipeline_options *o,
                    struct error *e) {
    *p = (struct pipeline){.comm = comm, .gpt = gpt, .micro_batch = o->micro_batch};
    struct gpt_chunk *all = memory_alloc(sizeof *all * (size_t)(comm->size * o->chunks));
    int status = partition_model(config, comm->size * o->chunks, all, e);
    status = status || schedule_create(&p->schedule, o->schedule, comm->size, o->chunks, o->micro_batches, e);
    if (!status) {
        create_stations(p);
        create_model(p, config, device, all);
    }
    free(all);
    return status ? -1 : 0;
}

void pipeline_free(struct pipeline *p) {
    if (!p->station) return;
    for (int c = 0; c < p->schedule.chunks; c++) {
        free(p->station[c].slot);
        free(p->station[c].inbox);
    }
    free(p->station);
    schedule_free(&p->schedule);
    *p = (struct pipeline){0};
}

static struct gpt_batch batch_of(const struct execution *x, const struct action *a) {
    const struct pipeline *p = x->pipeline;
    struct gpt_batch b = x->job->share;
    const int64_t first = a->micro_batch * p->micro_batch, left = b.sequences - first;
    b.tokens += first * b.positions;
    b.targets += first * b.positions;
    b.sequences = left < p->micro_batch ? left : p->micro_batch;
    b.first_sequence += first;
    b.chunk = a->chunk;
    return b;
}

static struct slot *find_slot(const struct execution *x, const struct action *a) {
    const struct pipeline_station *t = &x->pipeline->station[a->chunk];
    for (int i = 0; i < t->slots; i++)
        if (t->slot[i].micro_batch == a->micro_batch) return &t->slot[i];
    return NULL;
}

/* The batch as it was when the slot was taken. */
static struct gpt_batch batch_in(const struct execution *x, const struct action *a, const struct slot *slot) {
    struct gpt_batch b = batch_of(x, a);
    CHECK(slot, "stage %d has no activations of micro-batch %d in chunk %d", x->pipeline->comm->rank,
          a->micro_batch, a->chunk);
    b.set = (int)(slot - x->pipeline->station[a->chunk].slot);
    return b;
}

static double milliseconds_since(double start) {
    return 1e3 * (clock_seconds() - start);
}

/* Ends a message under way. */
static void wait_for(struct execution *x, struct work *work, bool *open) {
    const double since = clock_seconds();
    if (!*open) return;
    comm_end(x->pipeline->comm, work);
    *open = false;
    x->result.bubble_ms += milliseconds_since(since);
}

static int peer_of(const struct execution *x, const struct action *a) {
    return schedule_peer(&x->pipeline->schedule, x->pipeline->comm->rank, a);
}

static bool begin_receive_input(struct execution *x, const struct action *a) {
    const struct pipeline_station *t = &x->pipeline->station[a->chunk];
    struct gpt_batch b = batch_of(x, a);
    while (b.input < t->inboxes && t->inbox[b.input].micro_batch >= 0) b.input++;
    if (b.input == t->inboxes) return false;
    struct inbox *inbox = &t->inbox[b.input];
    inbox->micro_batch = a->micro_batch;
    comm_receive_begin(x->pipeline->comm, gpt_input(x->pipeline->gpt, &b), peer_of(x, a), &inbox->work);
    return true;
}

/* The gradient of an output goes where that of the input will be: the slot must be taken, and its last gradient sent. */
static bool begin_receive_gradient(struct execution *x, const struct action *a, bool now) {
    struct slot *slot = find_slot(x, a);
    if (!slot || (!now && slot->gradient_open && !comm_done(x->pipeline->comm, &slot->gradient)))
        return false;
    wait_for(x, &slot->gradient, &slot->gradient_open);
    const struct gpt_batch b = batch_in(x, a, slot);
    comm_receive_begin(x->pipeline->comm, gpt_boundary_gradient(x->pipeline->gpt, &b), peer_of(x, a),
                       &slot->gradient);
    slot->gradient_open = true;
    return true;
}

/* Begins the receives up to list[i], and those behind it as far as there is room. */
static void begin_receives(struct execution *x, int i) {
    for (; x->ahead < x->count; x->ahead++) {
        const struct action *a = &x->list[x->ahead];
        const bool now = x->ahead <= i;
        bool begun = true;
        if (a->kind == ACTION_RECEIVE_FORWARD) begun = begin_receive_input(x, a);
        if (a->kind == ACTION_RECEIVE_BACKWARD) begun = begin_receive_gradient(x, a, now);
        CHECK(begun || !now, "stage %d has no room for a message to chunk %d, micro-batch %d",
              x->pipeline->comm->rank, a->chunk, a->micro_batch);
        if (!begun) return;
    }
}

/* Takes a slot for a forward pass: the one that has been free for longest. */
static struct slot *take_slot(struct execution *x, const struct action *a) {
    struct pipeline_station *t = &x->pipeline->station[a->chunk];
    for (int i = 1; i <= t->slots; i++) {
        struct slot *slot = &t->slot[(t->newest + i) % t->slots];
        if (slot->held) continue;
        t->newest = (t->newest + i) % t->slots;
        wait_for(x, &slot->output, &slot->output_open);
        slot->micro_batch = a->micro_batch;
        slot->held = true;
        return slot;
    }
    CHECK(false, "stage %d has no room for micro-batch %d in chunk %d", x->pipeline->comm->rank,
          a->micro_batch, a->chunk);
    return NULL;
}

/* Waits for the input of a chunk; the number of its memory. */
static int take_input(struct execution *x, const struct action *a) {
    const struct pipeline_station *t = &x->pipeline->station[a->chunk];
    int input = 0;
    while (input < t->inboxes && t->inbox[input].micro_batch != a->micro_batch) input++;
    CHECK(input < t->inboxes, "stage %d computes chunk %d, micro-batch %d, whose input nobody receives",
          x->pipeline->comm->rank, a->chunk, a->micro_batch);
    bool open = true;
    wait_for(x, &t->inbox[input].work, &open);
    t->inbox[input].micro_batch = -1;
    return input;
}

static void add_loss(struct execution *x, struct gpt_loss part) {
    x->result.sums.loss += part.loss;
    x->result.sums.correct += part.correct;
}

static void forward(struct execution *x, const struct action *a) {
    struct pipeline *p = x->pipeline;
    const int input = has_input(p, a->chunk) ? take_input(x, a) : 0;
    struct slot *slot = take_slot(x, a);
    struct gpt_batch b = batch_in(x, a, slot);
    b.input = input;
    const double start = clock_seconds();
    gpt_forward(p->gpt, &b);
    if (!b.training) {
        if (p->gpt->chunk[a->chunk].head) add_loss(x, gpt_evaluate(p->gpt, &b));
        slot->held = false;
    }
    x->result.forward_ms += milliseconds_since(start);
}

static void backward(struct execution *x, const struct action *a) {
    struct pipeline *p = x->pipeline;
    struct slot *slot = find_slot(x, a);
    const struct gpt_batch b = batch_in(x, a, slot);
    const bool last = a->micro_batch + 1 == p->schedule.micro_batches;
    const struct gpt_backward_plan plan = {.scale = x->job->scale,
                                           .accumulate = a->micro_batch > 0,
                                           .ready = last ? x->job->ready : NULL,
                                           .context = x->job->context};
    /* The gradient of the output must be there, or, with the head, the slot's last gradient be sent. */
    if (a->kind != ACTION_BACKWARD_WEIGHT) wait_for(x, &slot->gradient, &slot->gradient_open);
    const double start = clock_seconds();
    if (a->kind == ACTION_BACKWARD_WEIGHT)
        gpt_backward_weights(p->gpt, &b, &plan);
    else
        add_loss(x, gpt_backward(p->gpt, &b, &plan));
    x->result.backward_ms += milliseconds_since(start);
    slot->held = a->kind == ACTION_BACKWARD_INPUT;
}

static void send(struct execution *x, const struct action *a) {
    struct pipeline *p = x->pipeline;
    struct slot *slot = find_slot(x, a);
    const struct gpt_batch b = batch_in(x, a, slot);
    const bool output = a->kind == ACTION_SEND_FORWARD;
    comm_send_begin(p->comm, output ? gpt_output(p->gpt, &b) : gpt_boundary_gradient(p->gpt, &b),
                    peer_of(x, a), output ? &slot->output : &slot->gradient);
    *(output ? &slot->output_open : &slot->gradient_open) = true;
}

static void act(struct execution *x, const struct action *a) {
    switch (a->kind) {
    case ACTION_FORWARD:
        forward(x, a);
        break;
    case ACTION_BACKWARD:
    case ACTION_BACKWARD_INPUT:
    case ACTION_BACKWARD_WEIGHT:
        backward(x, a);
        break;
    case ACTION_SEND_FORWARD:
    case ACTION_SEND_BACKWARD:
        send(x, a);
        break;
    case ACTION_RECEIVE_FORWARD:
    case ACTION_RECEIVE_BACKWARD:
        break; /* begun before */
    }
}

static struct pipeline_result execute(struct pipeline *p, const struct action *list, int count,
                                      const struct pipeline_job *job) {
    struct execution x = {.pipeline = p, .job = job, .list = list, .count = count};
    for (int c = 0; c < p->schedule.chunks; c++)
        for (int i = 0; i < p->station[c].slots; i++) p->station[c].slot[i].micro_batch = -1;
    for (int i = 0; i < count; i++) {
        begin_receives(&x, i);
        act(&x, &list[i]);
    }
    for (int c = 0; c < p->schedule.chunks; c++)
        for (int i = 0; i < p->station[c].slots; i++) {
            struct slot *slot = &p->station[c].slot[i];
            wait_for(&x, &slot->output, &slot->output_open);
            wait_for(&x, &slot->gradient, &slot->gradient_open);
        }
    return x.result;
}

struct pipeline_result pipeline_train(struct pipeline *p, const struct pipeline_job *job) {
    const int stage = p->comm->rank;
    return execute(p, p->schedule.list[stage], p->schedule.count[stage], job);
}

/* Forward passes in groups of as many micro-batches as there are stages: chunk 0 of the group, chunk 1 of it, ... */
static int list_forward(const struct pipeline *p, int micro_batches, struct action *list) {
    const int stages = p->schedule.stages, chunks = p->schedule.chunks;
    int count = 0;
    for (int group = 0; group < micro_batches; group += stages)
        for (int c = 0; c < chunks; c++)
            for (int m = group; m < group + stages && m < micro_batches; m++) {
                const bool last = p->comm->rank == stages - 1 && c == chunks - 1;
                if (has_input(p, c)) list[count++] = (struct action){ACTION_RECEIVE_FORWARD, c, m};
                list[count++] = (struct action){ACTION_FORWARD, c, m};
                if (!last) list[count++] = (struct action){ACTION_SEND_FORWARD, c, m};
            }
    return count;
}

struct pipeline_result pipeline_evaluate(struct pipeline *p, const struct gpt_batch *share) {
    const struct pipeline_job job = {.share = *share};
    const int micro_batches = (int)((share->sequences + p->micro_batch - 1) / p->micro_batch);
    struct action *list = memory_alloc(sizeof *list * 3 * (size_t)p->schedule.chunks * (size_t)micro_batches);
    const int count = list_forward(p, micro_batches, list);
    const struct pipeline_result result = execute(p, list, count, &job);
    free(list);
    return result;
}
