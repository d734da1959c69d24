"""JSON-RPC 2.0 as gateways speak it: its error codes (section 5.1) and the bounds on messages.

The bounds are those of native code, which keeps them; tests send what is one over each.
"""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

MAX_BATCH = 100  # requests in one message
MAX_DEPTH = 128  # of arrays and objects within each other, a batch's own included
MAX_VALUES = 1 << 17  # in one message, arrays and objects counted
MAX_ID_BYTES = 256  # of an id as JSON
MAX_UNANSWERED = 256  # calls of one connection; then nothing more is read from it
MAX_RESULT_BYTES = 16 << 20  # a list is longer than a request; over this REST streams it
MAX_RECOVERED_EVENTS = 1_000  # in the answer to one `subscribe`; the rest follows as notifications
MAX_RECOVERED_BYTES = 1 << 20
MAX_MESSAGE_S = 60  # from the first byte of a message to its last
TOKEN_WARNING_S = 60  # before a token's end
