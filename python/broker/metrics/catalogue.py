"""Every metric: its name, type, labels and meaning. The page is made of it.

Each sample also has the labels `node`, `process` (the kind of process) and `pid`. No label has a value that a
caller chooses: operations, outcomes, limits, queues and slots are ours and few. No metric names an account, a
user or an id.
"""

from dataclasses import dataclass

PROCESS_LABELS = ("node", "process", "pid")

# From a read of a cached program to an import of 64 MiB.
_CALL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# From a commit on a fast disk to one that waits for an unavailable database.
_COMMIT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# From a gateway that waits for news on the same machine to one that is behind, or far away.
_HAND_OVER_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# As native code counts them; a test compares.
_DELAY_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric.

    Attributes:
        kind: `counter` (never goes back while its process lives), `gauge` or `histogram`.
        labels: besides those of the process.
        buckets: upper bounds of a histogram, ascending, without the infinite one.
    """

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Definition:
    return Definition(name, "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Definition:
    return Definition(name, "gauge", text, labels)


UP = _gauge("broker_process_up", "1 for a process that answered this scrape, 0 for one that did not in time.")
INFO = _gauge(
    "broker_process_info",
    "Always 1; the labels have the version and the purpose of the process.",
    "name",
    "version",
)
START = _gauge("broker_process_start_time_seconds", "Start time of the process, as a Unix time.")
CPU = _counter("broker_process_cpu_seconds_total", "CPU time, user and system.")
RESIDENT = _gauge("broker_process_resident_memory_bytes", "Resident memory.")
FILES = _gauge("broker_process_open_fds", "Open file descriptors (Linux 6.2 or newer).")
FILES_MAX = _gauge("broker_process_max_fds", "Limit of open file descriptors.")
MEMORY_FREE = _gauge(
    "broker_node_memory_available_bytes", "Memory of the machine that is available to new work."
)
MEMORY = _gauge("broker_node_memory_bytes", "Memory of the machine.")
DISK_FREE = _gauge(
    "broker_disk_free_bytes", "Free bytes of the disk with the data directory, for users other than root."
)
READY = _gauge(
    "broker_ready",
    "1 for a part of `/readyz` that is `ok`, otherwise 0: `database`, `owners`, `counters`,"
    " `gateways`, `tasks`.",
    "part",
)
MAINTENANCE = _gauge(
    "broker_maintenance", "1 in a process that refuses changes because maintenance is on, otherwise 0."
)
LAG = _gauge(
    "broker_event_loop_lag_seconds", "Delay until the Python event loop of the process handled this scrape."
)

OPERATIONS = _counter(
    "broker_operations_total",
    "Operations, by name and outcome (`ok`, `cancelled` or the name of the error).",
    "operation",
    "outcome",
)
OPERATION_SECONDS = Definition(
    "broker_operation_duration_seconds",
    "histogram",
    "Time from the call to its result, or to the first chunk of a streamed result.",
    ("operation",),
    _CALL_S,
)
LOGINS_FAILED = _counter("broker_logins_failed_total", "Log-ins refused because of wrong credentials.")
RATE_LIMITED = _counter(
    "broker_rate_limited_total",
    "Requests refused by a rate limit: `login`, `login_failures`, `api_tokens`, `storage`,"
    " `fetch`, `lists`, `accounts`, `images`, `visitors`, `responses`, `names` of measures, `messages`.",
    "limit",
)
QUOTA_REFUSALS = _counter(
    "broker_quota_refusals_total",
    "Requests refused by a quota of their account: `programs`, `events`, `storage`, `images`.",
    "quota",
)
TASK_RESTARTS = _counter(
    "broker_task_restarts_total", "Long-lived tasks that failed and were restarted.", "task"
)
HTTP_RESPONSES = _counter("broker_http_responses_total", "HTTP responses, by class of status.", "status")
HTTP_REQUESTS = _gauge("broker_http_requests_in_progress", "HTTP requests in progress.")
HTTP_WAITING = _gauge(
    "broker_http_waiting_bytes",
    "Bytes of request bodies that are in memory, at most `BROKER_HTTP_WAITING_BYTES`.",
)

COMMIT_SECONDS = Definition(
    "broker_commit_duration_seconds", "histogram", "Duration of a group commit.", ("slot",), _COMMIT_S
)
WRITE_SECONDS = Definition(
    "broker_write_duration_seconds",
    "histogram",
    "Time from the arrival of a change, or of a batch of votes, at its owner or counter until it is durable.",
    ("slot",),
    _COMMIT_S,
)
HAND_OVER_SECONDS = Definition(
    "broker_owner_hand_over_duration_seconds",
    "histogram",
    "Time from the first durable notification of a reply to a gateway until the gateway has"
    " acknowledged the reply; of a gateway that feeds others, from its arrival there.",
    (),
    _HAND_OVER_S,
)
COMMITTED = _counter("broker_committed_total", "Changes, or batches of votes, in those commits.", "slot")
DOUBTS = _counter(
    "broker_commits_in_doubt_total", "Commits whose outcome was unknown and had to be looked up.", "slot"
)
LOSSES = _counter(
    "broker_histories_lost_total",
    "Histories of programs, and tallies, of which the database had lost the latest part.",
)
GENERATION = _gauge(
    "broker_slot_generation",
    "Generation of the slot: rises when a process takes over the slot, and with each commit in doubt.",
    "slot",
)
QUEUE = _gauge(
    "broker_queue_length",
    "Queue lengths: `writer` and `counting` wait for a commit, `owners` and `counters` for a"
    " call to them, `calls` are those of WebSocket clients, `database` waits for a"
    " connection, `lists` for a turn to read a list, `passwords` for a thread that hashes them.",
    "queue",
)
QUEUE_BYTES = _gauge("broker_queue_bytes", "Bytes that wait for a commit.", "queue")
TOPICS = _gauge("broker_owner_topics", "Programs and channels that an owner has in memory.")
FOLLOWERS = _gauge("broker_owner_gateways", "Gateways that follow this owner.")
RELAY_SESSIONS = _gauge(
    "broker_gateway_relay_sessions",
    "Sessions of gateways that this gateway feeds in place of owners; each has one an owner.",
)
VOTES = _counter("broker_votes_total", "Votes and impressions, by whether they changed a count.", "outcome")
VOTE_SECONDS = Definition(
    "broker_vote_duration_seconds",
    "histogram",
    "Time from the arrival of votes of one request, or of a batch of native code, until they are durable.",
    (),
    _COMMIT_S,
)
TALLIES = _gauge("broker_tallies", "Shards of polls that this counter has in memory.")
DATABASE = _gauge(
    "broker_database_connections", "Connections of the database pool, by state: `used`, `idle`.", "state"
)
DATABASE_MAX = _gauge("broker_database_connections_max", "Maximum size of the database pool.")

CONNECTIONS = _gauge("broker_gateway_connections", "WebSocket connections, including those in the handshake.")
SUBSCRIPTIONS = _gauge("broker_gateway_subscriptions", "Subscriptions of open connections.")
LOGS = _gauge("broker_gateway_logs", "Topics whose log is in memory.")
LOG_BYTES = _gauge("broker_gateway_log_bytes", "Bytes of those logs.")
SESSIONS = _gauge("broker_gateway_sessions", "Access tokens in use.")
CALLS_RUNNING = _gauge("broker_gateway_calls_running", "Calls that currently run in Python.")
LOOP_LAG = _gauge(
    "broker_gateway_loop_lag_seconds", "Delay until a native event loop handled the previous scrape.", "loop"
)
DEAD_LOOPS = _gauge(
    "broker_gateway_dead_loops", "Native event loops that have failed; the gateway is replaced."
)
DELIVERIES = _counter("broker_gateway_deliveries_total", "Notifications sent to connections.")
DELIVERED_BYTES = _counter("broker_gateway_delivered_bytes_total", "Bytes of those notifications.")
DELAY_SECONDS = Definition(
    "broker_gateway_delivery_delay_seconds",
    "histogram",
    "Time from the arrival of a notification at the gateway until it is in the socket, for each"
    " subscriber that keeps up; of notifications sent together the newest one counts.",
    (),
    _DELAY_S,
)
MESSAGES = _counter("broker_gateway_messages_total", "Messages from clients.")
HANDSHAKES = _counter("broker_gateway_handshakes_total", "WebSocket handshakes completed.")
TLS_HANDSHAKES = _counter(
    "broker_gateway_tls_handshakes_total",
    "TLS handshakes: `full`, `resumed` by a ticket, or `failed` by an error or an alert.",
    "outcome",
)
CERTIFICATE_EXPIRY = _gauge(
    "broker_certificate_expiry_timestamp_seconds",
    "When the certificate of a door, `websocket` or `http`, expires, as a Unix time; absent without TLS.",
    "door",
)
REFUSED = _counter("broker_gateway_refused_total", "Connections and handshakes refused.")
NATIVE_VOTES = _counter("broker_gateway_native_votes_total", "Votes taken by native code.")
CLOSES = _counter(
    "broker_gateway_closes_total",
    "Connections that ended: by the gateway's close code and its reason, by the `client`, or"
    " `lost` without a close frame.",
    "code",
    "reason",
)

IMAGES = _counter(
    "broker_images_total",
    "Image requests: served from `memory`, from `disk`, `made`, or `refused` with an error.",
    "outcome",
)
IMAGE_SECONDS = Definition(
    "broker_image_duration_seconds",
    "histogram",
    "Time of an image request: `hit` from a cache, `made`, `refused` because of what was asked for,"
    " `source` if the source could not be had, or `failed`.",
    ("outcome",),
    _CALL_S,
)
IMAGE_FETCHES = _counter("broker_image_fetches_total", "Requests for source images.")
IMAGE_CRASHES = _counter("broker_image_crashes_total", "Images that crashed their decoder process.")
IMAGE_BYTES = _counter("broker_image_sent_bytes_total", "Bytes of images sent.")
IMAGE_WARMINGS = _counter(
    "broker_image_warmings_total",
    "Images of published events: `made` ahead of requests, already cached (`hit`), `failed`,"
    " or `dropped` because the queue was full.",
    "outcome",
)
FACE_SEARCHES = _counter(
    "broker_face_searches_total",
    "Face detections: `answered` by a detector, or `missing`, in which case the image is"
    " cropped by attention.",
    "outcome",
)
FACE_MODELS = _gauge(
    "broker_face_models",
    "1 if a replica has loaded face models, 0 if it has none; `provider` is that of ONNX Runtime.",
    "models",
    "provider",
)

SLOT_EXCHANGES = _counter(
    "broker_slot_exchanges_total",
    "Owners and counters that were replaced because they hung or had died.",
    "slot",
)
GATEWAY_REPLACEMENTS = _counter(
    "broker_gateway_replacements_total",
    "Gateways that were replaced because they died, hung or lost an event loop.",
)
GATEWAYS = _gauge("broker_gateways", "Gateways that accept connections, on all nodes.")
IMAGES_UP = _gauge(
    "broker_images_up", "1 if the image proxy serves requests, or would start for the first one; otherwise 0."
)

CATALOGUE = (
    UP, INFO, START, CPU, RESIDENT, FILES, FILES_MAX, MEMORY_FREE, MEMORY, DISK_FREE, READY,
    MAINTENANCE, LAG,
    OPERATIONS, OPERATION_SECONDS, LOGINS_FAILED, RATE_LIMITED, QUOTA_REFUSALS, TASK_RESTARTS, HTTP_RESPONSES,
    HTTP_REQUESTS, HTTP_WAITING, COMMIT_SECONDS, WRITE_SECONDS, HAND_OVER_SECONDS, COMMITTED, DOUBTS,
    LOSSES, GENERATION, QUEUE,
    QUEUE_BYTES, TOPICS, FOLLOWERS, RELAY_SESSIONS, VOTES, VOTE_SECONDS, TALLIES, DATABASE, DATABASE_MAX,
    CONNECTIONS, SUBSCRIPTIONS, LOGS, LOG_BYTES, SESSIONS, CALLS_RUNNING, LOOP_LAG, DEAD_LOOPS, DELIVERIES,
    DELIVERED_BYTES, DELAY_SECONDS, MESSAGES, HANDSHAKES, TLS_HANDSHAKES, CERTIFICATE_EXPIRY, REFUSED,
    NATIVE_VOTES, CLOSES, IMAGES, IMAGE_SECONDS, IMAGE_FETCHES, IMAGE_CRASHES, IMAGE_BYTES, IMAGE_WARMINGS,
    FACE_SEARCHES, FACE_MODELS,
    SLOT_EXCHANGES, GATEWAY_REPLACEMENTS, GATEWAYS, IMAGES_UP,
)  # fmt: skip
