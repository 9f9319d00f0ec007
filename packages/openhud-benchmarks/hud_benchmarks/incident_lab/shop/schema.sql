-- The shop's database as a fresh incident finds it. Each service signs in with a role of its own.
CREATE TABLE customers (
    id integer PRIMARY KEY,
    name text NOT NULL,
    region text NOT NULL
);
CREATE TABLE products (
    id integer PRIMARY KEY,
    name text NOT NULL,
    category text NOT NULL,
    price_cents integer,
    discount_percent integer
);
CREATE TABLE stock (
    product_id integer PRIMARY KEY REFERENCES products,
    quantity integer NOT NULL
);
CREATE TABLE orders (
    id bigserial PRIMARY KEY,
    customer_id integer NOT NULL,
    total_cents bigint NOT NULL,
    status text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    note text
);
CREATE TABLE payments (
    id serial PRIMARY KEY,
    order_id bigint NOT NULL,
    amount_cents bigint NOT NULL,
    bank_reference text,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE shipments (
    id serial PRIMARY KEY,
    order_id bigint NOT NULL,
    carrier text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE schema_migrations (
    version text PRIMARY KEY,
    author text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    statement text NOT NULL
);

INSERT INTO customers SELECT i, 'customer ' || i, 'region-' || i % 20 FROM generate_series(1, 4000) i;
INSERT INTO products
    SELECT i, 'product ' || i, (ARRAY['tea', 'coffee', 'cocoa', 'spices'])[1 + i % 4], 300 + i * 7 % 4000,
           CASE WHEN i % 3 = 0 THEN 10 END
    FROM generate_series(1, 400) i;
INSERT INTO stock SELECT id, 1000000 FROM products;
INSERT INTO orders (customer_id, total_cents, status, created_at, note)
    SELECT 1 + i * 7919 % 1000, 500 + i % 9000, 'shipped', now() - interval '90 days' + i * interval '30 seconds',
           'leave it at the door of house number ' || i
    FROM generate_series(1, 160000) i;
INSERT INTO shipments (order_id, carrier, created_at)
    SELECT i, (ARRAY['kestrel', 'heron', 'swift'])[1 + i % 3], now() - interval '89 days' + i * interval '30 seconds'
    FROM generate_series(1, 160000) i;
INSERT INTO payments (order_id, amount_cents, bank_reference, created_at)
    SELECT i, 500 + i % 9000, 'ref-' || md5(i::text), now() - interval '90 days' + i * interval '30 seconds'
    FROM generate_series(1, 160000) i;

CREATE INDEX customers_region_idx ON customers (region);
CREATE INDEX products_category_idx ON products (category);
CREATE INDEX orders_customer_id_idx ON orders (customer_id, created_at DESC);
CREATE INDEX shipments_order_id_idx ON shipments (order_id);
CREATE INDEX payments_order_id_idx ON payments (order_id);

INSERT INTO schema_migrations VALUES
    ('0041_products_category_idx', 'mira', now() - interval '41 days', 'CREATE INDEX products_category_idx ON products (category)'),
    ('0042_orders_customer_id_idx', 'tomas', now() - interval '23 days', 'CREATE INDEX orders_customer_id_idx ON orders (customer_id, created_at DESC)'),
    ('0043_shipments_order_id_idx', 'mira', now() - interval '12 days', 'CREATE INDEX shipments_order_id_idx ON shipments (order_id)');

GRANT SELECT ON customers, products, stock TO shop_catalog;
GRANT SELECT ON customers, products, shipments TO shop_orders;
GRANT SELECT, INSERT, UPDATE ON orders, stock TO shop_orders;
GRANT SELECT, INSERT ON payments TO shop_payments;
GRANT SELECT, UPDATE ON orders TO shop_worker;
GRANT SELECT, INSERT ON shipments TO shop_worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO shop_orders, shop_payments, shop_worker;
ANALYZE;
