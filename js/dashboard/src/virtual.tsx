/** A list of which only what is seen is in the page: ten thousand rows cost as much as thirty. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";

const OVERSCAN = 8;

export interface VirtualProps {
  label: string;
  count: number;
  rowPx: number;
  render: (index: number) => ComponentChildren;
  keyOf: (index: number) => string | number;
  /** Chosen by click or by the arrow keys. */
  selected?: number | undefined;
  onSelect?: (index: number) => void;
  onOpen?: (index: number) => void;
  /** The first row seen and the last, for who loads what is seen. */
  onRange?: (first: number, last: number) => void;
  /** How many rows came in front since the list began, less those that went: what is read does not move away. */
  arrived?: number;
  class?: string;
}

export function VirtualList(props: VirtualProps) {
  const { label, count, rowPx, selected, arrived = 0 } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const before = useRef(arrived);
  const id = useId();

  useEffect(() => {
    const element = box.current as HTMLDivElement;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  useLayoutEffect(() => {
    const element = box.current as HTMLDivElement;
    const rows = arrived - before.current;
    before.current = arrived;
    if (rows && element.scrollTop > rowPx) element.scrollTop += rows * rowPx;
  }, [arrived]);

  const first = Math.max(0, Math.floor(view.top / rowPx) - OVERSCAN);
  const last = Math.min(count - 1, Math.ceil((view.top + view.height) / rowPx) + OVERSCAN);
  useEffect(() => {
    if (last >= first) props.onRange?.(first, last);
  }, [first, last, count]);

  const choose = (index: number) => {
    if (!count) return;
    const at = Math.max(0, Math.min(count - 1, index));
    props.onSelect?.(at);
    const element = box.current as HTMLDivElement;
    if (at * rowPx < element.scrollTop) element.scrollTop = at * rowPx;
    const end = (at + 1) * rowPx - element.clientHeight;
    if (end > element.scrollTop) element.scrollTop = end;
  };
  const page = Math.max(1, Math.floor(view.height / rowPx) - 1);
  const steps: Record<string, (at: number) => number> = {
    ArrowDown: (at) => at + 1,
    ArrowUp: (at) => at - 1,
    PageDown: (at) => at + page,
    PageUp: (at) => at - page,
    Home: () => 0,
    End: () => count - 1,
  };
  const onKey = (event: KeyboardEvent) => {
    const step = steps[event.key];
    if (step && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      choose(step(selected ?? -1));
    } else if (event.key === "Enter" && selected !== undefined && props.onOpen) {
      event.preventDefault();
      props.onOpen(selected);
    }
  };

  const rows = [];
  for (let index = first; index <= last; index++) {
    rows.push(
      <div
        key={props.keyOf(index)}
        id={`${id}-${index}`}
        role="option"
        aria-selected={index === selected}
        aria-setsize={count}
        aria-posinset={index + 1}
        class="row"
        style={{ top: `${index * rowPx}px`, height: `${rowPx}px` }}
        onClick={() => {
          props.onSelect?.(index);
          props.onOpen?.(index);
        }}
      >
        {props.render(index)}
      </div>,
    );
  }
  const isSeen = selected !== undefined && selected >= first && selected <= last;
  return (
    <div ref={box} class={`virtual ${props.class ?? ""}`}>
      <div
        role="listbox"
        aria-label={label}
        tabIndex={0}
        class="virtual-rows"
        style={{ height: `${Math.max(count * rowPx, 1)}px` }}
        onKeyDown={onKey}
        {...(isSeen && { "aria-activedescendant": `${id}-${selected}` })}
      >
        {rows}
      </div>
    </div>
  );
}
