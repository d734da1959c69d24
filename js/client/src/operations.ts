/** The types of calls, made from the OpenAPI document: by path over HTTP, by name over the socket. */
import type { components, operations as Documented, paths } from "./schema.js";

export type { components, paths } from "./schema.js";

/** A call about a poll, which has the visitor of the connection unless it names another one. */
interface OfPoll<Entry> {
  requestBody: {
    content: {
      "application/json": Omit<Entry, "visitorId"> & {
        programId: string;
        projectId?: string | null;
        visitorId?: string | null;
      };
    };
  };
  responses: { 200: { content: { "application/json": components["schemas"]["Counted"] } } };
}

/** Those of the OpenAPI document, and those that the socket alone has. */
export interface operations extends Documented {
  respond: OfPoll<components["schemas"]["AnswerEntry"]>;
  impression: OfPoll<components["schemas"]["ImpressionEntry"]>;
}

type Methods = "get" | "put" | "post" | "delete" | "patch";
type Part<O, K extends string> = O extends { parameters: { [N in K]?: infer P } } ? NonNullable<P> : never;
type Present<T> = [T] extends [never] ? unknown : T;

/** The JSON of a body or of a reply. */
type Json<T> = T extends { content: infer C }
  ? "application/json" extends keyof C
    ? C["application/json"]
    : C[keyof C]
  : never;
type Body<O> = O extends { requestBody?: infer B } ? Json<NonNullable<B>> : never;

/** What an operation answers; undefined for one that answers nothing. */
export type Result<O> = O extends { responses: infer R }
  ? R extends { 200: infer T } | { 201: infer T } | { 202: infer T }
    ? Json<T>
    : undefined
  : never;

type Optional<T> = Record<never, never> extends T ? true : false;
type Field<K extends string, T> = [T] extends [never]
  ? unknown
  : Optional<T> extends true
    ? { [N in K]?: T }
    : { [N in K]: T };

/** The methods that a path has. */
export type MethodOf<P extends keyof paths> = {
  [M in Methods]: paths[P][M] extends object ? Uppercase<M> : never;
}[Methods];

/** The operation behind a method and a path. */
export type OperationOf<P extends keyof paths, M extends string> =
  Lowercase<M> extends keyof paths[P] ? paths[P][Lowercase<M>] : never;

/** What may come with every request. */
export interface RequestExtras {
  headers?: Record<string, string>;
  /** A change gets one by itself; give one to extend it over a reload. */
  idempotencyKey?: string;
  /** How long it is tried, 90 s; 0 tries once. */
  deadlineMs?: number;
  /** How long one try may take, 15 s. */
  timeoutMs?: number;
  signal?: AbortSignal;
}

/** What a request takes. */
export type RequestOptions<O> = Field<"path", Part<O, "path">> &
  Field<"query", Part<O, "query">> &
  Field<"body", Body<O>> &
  RequestExtras;

/** Names of operations. */
export type OperationName = keyof operations & string;

/** The params of a call over the socket: those of path, query and body together. */
export type Params<O> = Present<Part<O, "path">> &
  Present<Part<O, "query">> &
  Present<Body<O>> & { idempotencyKey?: string; ifMatch?: string };
