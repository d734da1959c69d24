/** The errors in what the broker answers, typed. */
import { ApiError, type ClientError, ProtocolError } from "./errors.js";
import type { Raw } from "./tracker.js";

/**
 * The typed error of an error body; undefined when it is not one that the broker makes. How long to wait is in the
 * headers of a reply, and in the body of one over the socket, which has none.
 */
export function parseApiError(status: number, body: Raw, headers?: Headers): ApiError | undefined {
  if (typeof body?.error !== "string" || body.status !== status) return undefined;
  return new ApiError(
    status,
    body.error,
    String(body.error_description ?? ""),
    Array.isArray(body.errors) ? body.errors : [],
    headers?.get("X-Request-Id") ?? "",
    headers ? retryAfterMs(headers) : inMs(body.retryAfter),
  );
}

/** The `Retry-After` of a reply in milliseconds; 0 where there is none. */
export const retryAfterMs = (headers: Headers): number => inMs(headers.get("Retry-After"));

/** Seconds that a client is asked to wait, in milliseconds; 0 for what is no such number. */
function inMs(seconds: Raw): number {
  return seconds > 0 && seconds < 1e6 ? seconds * 1000 : 0;
}

/** The typed error of a JSON-RPC error object. */
export function parseRpcError(error: Raw): ClientError {
  const code = Number(error?.code);
  const text = String(error?.message ?? "an error without a message");
  const body = error?.data;
  return (
    (body && parseApiError(Number(body.status), body)) ||
    (code >= 400 ? new ApiError(code, text, "") : new ProtocolError(`JSON-RPC error ${code}: ${text}`))
  );
}
