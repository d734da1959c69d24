-- With many gateways some feed others: a gateway tells by which name others find its process.

ALTER TABLE gateways ADD COLUMN actor text NOT NULL DEFAULT '';
